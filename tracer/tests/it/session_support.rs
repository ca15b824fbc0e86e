//! The settings of the sessions that tests run, and what a session prints.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use viptrace::{
    flow::Limits,
    session::{Detail, Grace, Settings},
};

use crate::flow_support::NODE;

/// A trace on worker-1, on a kernel with every hook.
pub(crate) fn settings(detail: Detail) -> Settings {
    Settings {
        limits: Limits::default(),
        node_name: Some("worker-1".into()),
        node_netns: Some(NODE),
        missing_hooks: Vec::new(),
        drop_reasons: true,
        grace: Grace::default(),
        detail,
    }
}

/// Everything that was printed.
#[derive(Clone, Default)]
pub(crate) struct Text(Arc<Mutex<Vec<u8>>>);

impl Text {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
