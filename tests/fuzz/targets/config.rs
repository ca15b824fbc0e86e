//! Any text as the agent's configuration: accepted, or refused with a line and a reason.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viptrace::agent::config::Config;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::parse(text) {
        Ok(config) => {
            assert!(config.needs_restart(&config).is_empty());
            // A line after the others changes no value.
            assert!(Config::parse(&format!("{text}\n# the end\n")).is_ok());
        }
        Err((line, why)) => assert!(line >= 1 && !why.trim().is_empty(), "line {line}: {why:?}"),
    }
});
