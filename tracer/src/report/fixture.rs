//! Judged flows and streams for the tests of this room and of the agent.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

pub(crate) use crate::verdict::fixture::{fault, near_a_loss, ok};
use crate::{
    report::{Printer, Verbosity},
    session::Judged,
    verdict::Verdict,
};

/// A verdict as a session first returns it.
pub(crate) fn judged(verdict: Verdict) -> Judged {
    Judged::of(verdict)
}

/// A writer whose text a test can read.
#[derive(Clone, Default)]
pub(super) struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    pub(super) fn take(&self) -> String {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&std::mem::take(&mut *bytes)).into_owned()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn printer() -> (Printer, Shared, Shared) {
    let (out, err) = (Shared::default(), Shared::default());
    (Printer::to(Box::new(out.clone()), Box::new(err.clone()), Verbosity::Normal), out, err)
}

/// Compares the printed text with the committed text.
pub(super) fn snapshot(name: &str, text: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/snapshots");
    insta::with_settings!({ snapshot_path => folder, prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, text);
    });
}
