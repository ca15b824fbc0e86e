//! Any bytes as a reader's request to the agent, and as the agent's answer: both ends of its socket.
#![no_main]

use std::{
    future::Future as _,
    pin::pin,
    task::{Context, Poll, Waker},
};

use libfuzzer_sys::fuzz_target;
use viptrace::agent::{Wanted, answer};

fuzz_target!(|bytes: &[u8]| {
    if let Some(wanted) = Wanted::parse(bytes) {
        let again = serde_json::to_vec(&wanted).unwrap();
        assert_eq!(Wanted::parse(&again), Some(wanted));
    }
    // Each frame has a head of 5 bytes. A record gets one line ending, and a heartbeat a line of at most 25 bytes.
    for (has_heartbeat, growth) in [(false, 1), (true, 5)] {
        let (mut from, mut out) = (bytes, Vec::new());
        // The bytes are all there, so that one poll reads them.
        let answered =
            pin!(answer(&mut from, &mut out, has_heartbeat)).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(answered, Poll::Ready(_)));
        assert!(out.len() <= bytes.len() * growth);
    }
});
