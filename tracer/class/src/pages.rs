//! Holds docs/classes in step with the entries: headings, the generated blocks, the index. `UPDATE_PAGES=1 cargo test -p
//! viptrace-class` rewrites what differs.

use std::{collections::BTreeSet, env, fmt::Write as _, fs, path::PathBuf};

use super::*;

const BEGIN: &str = "<!-- class: generated, see tracer/class/src -->";
const END: &str = "<!-- end -->";
const SECTIONS: [&str; 4] =
    ["## Mechanism", "## How viptrace recognises it", "## What looks the same", "## What to do"];
/// The width of the pages' text.
const COLUMNS: usize = 120;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/classes")
}

/// An item of a list, wrapped.
fn item(out: &mut String, indent: usize, text: &str) {
    let mut line = format!("{}-", " ".repeat(indent));
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > COLUMNS {
            out.push_str(&line);
            out.push('\n');
            line = " ".repeat(indent + 1);
        }
        line.push(' ');
        line.push_str(word);
    }
    out.push_str(&line);
    out.push('\n');
}

fn actions(out: &mut String, label: &str, actions: &[Action]) {
    if actions.is_empty() {
        return;
    }
    item(out, 0, &format!("**{label}:**"));
    for action in actions {
        let when = if action.when.is_empty() { String::new() } else { format!("when {}: ", action.when) };
        item(out, 2, &format!("[{}] {when}{}", action.safety, action.marked()));
    }
}

/// The generated block below the heading.
fn block(class: Class) -> String {
    let entry = class.entry();
    let names = |domains: &[Domain]| domains.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut out = format!("{BEGIN}\n\n");
    item(&mut out, 0, &format!("**Domain:** {}", names(entry.domains)));
    item(&mut out, 0, &format!("**Severity:** {}, unless the record says otherwise", entry.severity));
    let by = match entry.seen {
        Seen::Trace => "**Reported by:** `viptrace trace`",
        Seen::Check => "**Reported by:** `viptrace check`",
        Seen::Both => "**Reported by:** `viptrace trace`, `viptrace check`",
        Seen::Neither => &format!("**Not reported:** {}", entry.no_rule),
    };
    item(&mut out, 0, by);
    actions(&mut out, "Do now", entry.now);
    actions(&mut out, "Prevent it", entry.later);
    if !entry.escalate.is_empty() {
        item(&mut out, 0, &format!("**Escalate when** {}", entry.escalate.join(", or ")));
    }
    if !entry.references.is_empty() {
        item(&mut out, 0, &format!("**References:** {}", entry.references.join(", ")));
    }
    match entry.scenario {
        Scenario::Lab(names) => {
            item(&mut out, 0, &format!("**Scenarios of the lab:** `{}`", names.join("`, `")));
        }
        Scenario::None(reason) => item(&mut out, 0, &format!("**No scenario of the lab:** {reason}")),
    }
    let _ = write!(out, "\n{END}\n");
    out
}

/// The page with the heading and the block that it should have.
fn corrected(class: Class, page: &str) -> String {
    let body = match page.split_once(END) {
        Some((_, body)) => body,
        None => page.split_once('\n').map_or("", |(_, body)| body),
    };
    format!("# {class}: {}\n\n{}\n{}", class.title(), block(class), body.trim_start())
}

#[test]
fn pages_say_what_the_entries_say() {
    let mut stale = Vec::new();
    for class in Class::with_pages() {
        let path = folder().join(format!("{class}.md"));
        let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let corrected = corrected(class, &page);
        if page != corrected && env::var_os("UPDATE_PAGES").is_some() {
            fs::write(&path, corrected).unwrap();
        } else if page != corrected {
            stale.push(class.id());
        }
    }
    assert!(
        stale.is_empty(),
        "type: UPDATE_PAGES=1 cargo test -p viptrace-class; stale: {}",
        stale.join(", ")
    );
}

#[test]
fn every_page_has_its_sections_and_no_dead_link() {
    let known: BTreeSet<String> = Class::with_pages().map(|class| format!("{class}.md")).collect();
    for class in Class::with_pages() {
        let page = class.page();
        let sections: Vec<&str> = page.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(sections, SECTIONS, "{class}");
        for target in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            assert!(known.contains(target) || target.starts_with("http"), "{class}: {target}");
        }
    }
}

/// The tables below the index's last heading: every page by its first domain.
fn index() -> String {
    let mut out = String::new();
    for domain in Domain::ALL {
        let mut classes =
            Class::with_pages().filter(|class| class.entry().domains.first() == Some(domain)).peekable();
        if classes.peek().is_some() {
            let _ = write!(out, "\n### {domain}\n\n| class | title |\n|---|---|\n");
        }
        for class in classes {
            let _ = writeln!(out, "| [{class}]({class}.md) | {} |", class.title());
        }
    }
    out
}

#[test]
fn the_index_has_every_page_and_nothing_else() {
    const HEADING: &str = "## Index, by domain\n";
    let path = folder().join("README.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, _) = text.split_once(HEADING).unwrap();
    let corrected = format!("{before}{HEADING}{}", index());
    if text != corrected && env::var_os("UPDATE_PAGES").is_some() {
        fs::write(&path, corrected).unwrap();
    } else {
        assert_eq!(text, corrected, "type: UPDATE_PAGES=1 cargo test -p viptrace-class");
    }
    let files =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<String> = files.filter(|name| name != "README.md").collect();
    assert_eq!(pages, Class::with_pages().map(|class| format!("{class}.md")).collect());
}
