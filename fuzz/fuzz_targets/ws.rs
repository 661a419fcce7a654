//! Runs `targets::ws::ws` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidegate_fuzz::targets::ws::ws(data));
