#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    corpus::striped_log::fragment_header(bytes);
});
