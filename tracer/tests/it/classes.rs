//! The knowledge base and the program agree: the verbs report each class that they claim, and every class can be
//! explained.
use serde_json::Value;
use viptrace::{
    class::Class,
    diagnosis::{flows, triage},
};

use crate::terminal_support::Terminal;

#[test]
fn each_class_is_reported_by_the_verbs_that_its_entry_names() {
    for class in Class::ALL {
        let seen = class.entry().seen;
        let by_trace = flows::gives().any(|given| given == *class);
        assert_eq!(seen.by_trace(), by_trace, "{class}: a rule returns it: {by_trace}");
        let by_check = triage::gives().any(|given| given == *class);
        assert_eq!(seen.by_check(), by_check, "{class}: a check returns it: {by_check}");
    }
}

#[test]
fn schemas_list_the_ids() {
    let ids: Vec<Value> = Class::ALL.iter().map(|class| class.id().into()).collect();
    for record in ["verdict", "check", "explain"] {
        let schema: Value = serde_json::from_str(&output(&format!("schema {record}"))).unwrap();
        assert_eq!(schema["$defs"]["Class"]["enum"], Value::from(ids.clone()), "{record}");
    }
}

#[test]
fn the_whole_base_is_exported_and_valid() {
    let schema: Value = serde_json::from_str(&output("schema explain")).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let all: Vec<Value> = serde_json::from_str(&output("explain --all -o json")).unwrap();
    assert_eq!(all.len(), Class::ALL.len());
    for (class, record) in Class::ALL.iter().zip(&all) {
        let errors: Vec<_> = validator.iter_errors(record).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{class}: {errors:?}");
        assert_eq!(record["id"], class.id());
        assert!(record["page"].as_str().unwrap().contains("## What to do"), "{class}");
    }
    let one: Value = serde_json::from_str(&output("explain c6 -o json")).unwrap();
    assert_eq!(one, all[Class::ALL.iter().position(|class| *class == Class::C6).unwrap()]);
}

#[test]
fn pages_fit_the_terminal() {
    for class in Class::ALL {
        let page = output(&format!("explain {class}"));
        // A word that is longer than a line has its own line.
        let wide = page.lines().find(|line| line.chars().count() > 80 && line.trim().contains(' '));
        assert_eq!(wide, None, "{class}");
        assert!(!page.contains("**") && !page.contains("<!--") && !page.contains("]("), "{class}: {page}");
    }
}

#[test]
fn explaining() {
    let terminal = Terminal::new();
    insta::assert_snapshot!(terminal.session(&[
        "explain",
        "explain n10",
        "explain C99",
        "explain affinity",
        "explain --all C6"
    ]));
}

/// Standard output of a command that succeeds.
fn output(arguments: &str) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
