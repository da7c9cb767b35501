#![no_main]

#[path = "../src/consensus.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    checks::state(bytes);
});
