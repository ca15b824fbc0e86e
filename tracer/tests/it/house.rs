//! The rooms of `tracer/src` and their order: a room uses only the rooms above it.
//!
//! Reads the paths in each source file (`crate::…`, `super::…`) and reports the file, line and arrow of each path that
//! points downwards. While every arrow points up, imports between rooms cannot form a cycle.

use std::{
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The rooms, from the lowest to the highest. The first lines of a room's module state its purpose.
const ROOMS: [&str; 24] = [
    "error",
    "parse",
    "text",
    "time",
    "net",
    "class",
    "sighting",
    "verdict",
    "kernel",
    "flow",
    "cluster",
    "rules",
    "node",
    "diagnosis::finding",
    "diagnosis::audit",
    "diagnosis::path",
    "diagnosis::flows",
    "diagnosis::triage",
    "session",
    "recording",
    "report",
    "agent",
    "plugin",
    "cli",
];

/// A path in a file, from the crate's root, and its line.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    path: Vec<String>,
    line: usize,
}

/// The position of the room that contains this module; `None` for the crate's root and for the roots of split rooms,
/// which only declare and re-export.
fn room(path: &[String]) -> Option<usize> {
    ROOMS.iter().position(|room| {
        let names: Vec<&str> = room.split("::").collect();
        path.len() >= names.len() && names.iter().zip(path).all(|(name, part)| name == part)
    })
}

/// Collects the paths that begin with `crate` or `super`, resolved from their module.
fn named(tokens: TokenStream, module: &[String], out: &mut Vec<Named>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        match tree {
            TokenTree::Ident(ident) if ident == "mod" => {
                if let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) =
                    (trees.get(at + 1), trees.get(at + 2))
                {
                    named(body.stream(), &[module, &[name.to_string()]].concat(), out);
                    at += 3;
                    continue;
                }
            }
            TokenTree::Ident(ident) if ident == "crate" || ident == "super" => {
                let line = ident.span().start().line;
                let begin = if ident == "crate" { Vec::new() } else { parent(module) };
                at = rest(&trees, at + 1, begin, line, out);
                continue;
            }
            TokenTree::Group(group) => named(group.stream(), module, out),
            _ => {}
        }
        at += 1;
    }
}

fn parent(module: &[String]) -> Vec<String> {
    module.split_last().map(|(_, parent)| parent.to_vec()).unwrap_or_default()
}

/// Reads `::name::{…}` after the beginning of a path. Returns the position after it.
fn rest(
    trees: &[TokenTree],
    mut at: usize,
    mut path: Vec<String>,
    line: usize,
    out: &mut Vec<Named>,
) -> usize {
    let is_colon =
        |at: usize| matches!(trees.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
    if !is_colon(at) {
        // `pub(super)` and `pub(crate)` contain no path.
        return at;
    }
    while is_colon(at) && is_colon(at + 1) {
        match trees.get(at + 2) {
            Some(TokenTree::Ident(ident)) if ident == "super" => path = parent(&path),
            Some(TokenTree::Ident(ident)) => path.push(ident.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for item in
                    inner.split(|tree| matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ','))
                {
                    let Some(TokenTree::Ident(first)) = item.first() else { continue };
                    let begin = match first.to_string().as_str() {
                        "self" => path.clone(),
                        "super" => parent(&path),
                        name => [path.as_slice(), &[name.to_owned()]].concat(),
                    };
                    rest(item, 1, begin, first.span().start().line, out);
                }
                return at + 3;
            }
            _ => break,
        }
        at += 3;
    }
    out.push(Named { path, line });
    at
}

/// The downward arrows of one file.
fn offences(file: &Path, module: &[String], source: &str) -> Vec<String> {
    let Some(own) = room(module) else { return Vec::new() };
    let tokens = source.parse::<TokenStream>().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut found = Vec::new();
    named(tokens, module, &mut found);
    found
        .into_iter()
        .filter_map(|named| {
            let names = || named.path.join("::");
            let arrow = match room(&named.path) {
                Some(other) if other <= own => return None,
                Some(other) => format!("{} uses {}, a room below it", ROOMS[own], ROOMS[other]),
                None if named.path.first().is_some_and(|first| first == "diagnosis") => {
                    format!("{} uses the re-exports of diagnosis", ROOMS[own])
                }
                None => return None,
            };
            let is_inside = ROOMS[own].starts_with("diagnosis") || !arrow.ends_with("diagnosis");
            is_inside.then(|| format!("{}:{}: {arrow} ({})", file.display(), named.line, names()))
        })
        .collect()
}

/// The modules of the crate, by file.
fn modules(folder: &Path, path: &[String], out: &mut Vec<(PathBuf, Vec<String>)>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        let name = entry.file_stem().unwrap().to_str().unwrap().to_owned();
        if entry.is_dir() {
            modules(&entry, &[path, &[name]].concat(), out);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            let module = match name.as_str() {
                "mod" => path.to_vec(),
                "lib" | "main" if path.is_empty() => continue,
                _ => [path, &[name]].concat(),
            };
            out.push((entry, module));
        }
    }
}

#[test]
fn a_room_uses_only_rooms_above_it() {
    let mut files = Vec::new();
    modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &[], &mut files);
    assert!(files.len() > 100, "the sources were not found");
    let offences: Vec<_> = files
        .iter()
        .flat_map(|(file, module)| offences(file, module, &fs::read_to_string(file).unwrap()))
        .collect();
    assert!(offences.is_empty(), "arrows that point downwards:\n{}", offences.join("\n"));
}

#[test]
fn every_room_is_in_the_list() {
    let mut files = Vec::new();
    modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &[], &mut files);
    for (file, module) in files {
        let split =
            module.len() == 1 && ROOMS.iter().any(|room| room.starts_with(&format!("{}::", module[0])));
        assert!(split || room(&module).is_some(), "{} is in no room", file.display());
    }
}

#[test]
fn a_downward_arrow_is_named() {
    let path = |text: &str| text.split("::").map(str::to_owned).collect::<Vec<_>>();
    let seen = |module: &str, source: &str| offences(Path::new("x.rs"), &path(module), source);
    assert!(seen("flow::table", "use crate::{net::Tuple, sighting::{self, Hook}};").is_empty());
    let found = seen("flow::table", "use crate::{\n    net::Tuple,\n    report::json,\n};");
    assert_eq!(found, ["x.rs:3: flow uses report, a room below it (report::json)"]);
    assert_eq!(seen("net", "fn f() { super::cli::run() }").len(), 1);
    assert_eq!(seen("net", "mod tests { use super::*; use super::super::cli; }").len(), 1);
    assert!(seen("diagnosis::triage::proxy", "use super::super::audit;").is_empty());
    assert_eq!(seen("diagnosis::audit::frame", "use crate::diagnosis::triage::Facts;").len(), 1);
    assert_eq!(seen("diagnosis::audit", "use crate::diagnosis::Rule;").len(), 1);
}
