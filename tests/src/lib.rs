//! The lab: a node, a cluster, traffic and faults that prove viptrace on real kernels.
//!
//! It runs inside a guest (`boot`), builds a node as Kubernetes does (`topology`, `rules`, `kube_proxy`), sends traffic
//! with known outcomes (`traffic`), runs `viptrace` as a user would (`tool`) and compares (`expect`, `scenarios`).
//! Nothing here is part of the product, and nothing here uses viptrace's internals: the lab sees only its command line,
//! its records and its exit status.

pub mod agent;
pub mod apiserver;
pub mod boot;
pub mod cluster;
pub mod command;
pub mod console;
pub mod dataplane;
pub mod expect;
pub mod invocation;
pub mod ipvs;
pub mod kube_proxy;
pub mod matrix;
pub mod modes;
pub mod netns;
pub mod predicted;
pub mod process;
pub mod published;
pub mod replay;
pub mod rules;
pub mod scenarios;
pub mod score;
pub mod sys;
pub mod tool;
pub mod topology;
pub mod traffic;
pub mod wait;
pub mod watcher;
pub mod world;
