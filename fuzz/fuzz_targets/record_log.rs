#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::record_log::log(bytes);
});
