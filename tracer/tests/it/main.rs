//! The tests that use viptrace from outside: its library as `main` uses it, and the program itself.
//!
//! One binary, because each binary costs a link: a module for each theme, and `*_support` modules with helpers that
//! several themes share.

#![cfg(test)]

mod agent;
mod agent_export;
mod agent_recorder;
mod agent_support;
mod audit;
mod check_any_input;
mod check_captures;
mod check_cli;
mod check_faults;
mod check_modes;
mod check_moment;
mod check_neighbours;
mod check_outage;
mod check_settings;
mod check_support;
mod classes;
mod cli;
mod cluster_support;
mod cluster_watch;
mod commands;
mod corpus;
mod decode;
mod errors;
mod export;
mod flow_late_decisions;
mod flow_room;
mod flow_support;
mod flow_table;
mod help;
mod house;
mod incident;
mod ipvs_support;
mod kubectl_collect;
mod node_support;
mod output;
mod pages;
mod path;
mod path_walk;
mod pcap;
mod pcap_support;
mod plan;
mod recording;
mod recording_cli;
mod recording_corpus;
mod recording_support;
mod replay_input;
mod replay_selection;
mod schema;
mod scoreboard;
mod session_changes;
mod session_clock;
mod session_folds;
mod session_support;
mod soak;
mod soak_verdicts;
mod terminal_support;
mod top;
mod trail;
mod verdict_classes;
mod verdict_confidence;
mod verdict_confounders;
mod verdict_history;
mod verdict_ipvs;
mod verdict_kinds;
mod verdict_late;
mod verdict_missing;
mod verdict_notes;
mod verdict_ordinary;
mod verdict_policy;
mod verdict_resets;
mod wording;
