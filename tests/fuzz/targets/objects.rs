//! Any JSON as a Kubernetes object of each kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viptrace::cluster::{Kind, trim};

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    for kind in Kind::ALL {
        let mut odd = Vec::new();
        let _ = trim::trim(kind, value.clone(), &mut odd);
        let _ = trim::key_of(kind, &value);
    }
});
