#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    corpus::manager::host_messages(bytes);
});
