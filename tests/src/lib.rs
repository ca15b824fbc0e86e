//! The lab.

pub mod apiserver;
