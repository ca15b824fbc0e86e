//! The rooms of `tracer/src` and their order: a room uses only the rooms above it.
//!
//! Reads the paths in each source file (`crate::…`, `super::…`) and reports the file, line and arrow of each path that
//! points downwards. While every arrow points up, imports between rooms cannot form a cycle.
//!
//! The plugin runs on every system. So code that Linux or Unix alone can compile stands behind a `cfg`: of its module, or
//! of the item itself. `cargo xtask portable` compiles the rest for other systems.

use std::{
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The rooms, from the lowest to the highest. The first lines of a room's module state its purpose.
const ROOMS: [&str; 31] = [
    "called",
    "error",
    "parse",
    "text",
    "platform",
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
    "diagnosis::remedy",
    "diagnosis::left_out",
    "diagnosis::audit",
    "diagnosis::path",
    "diagnosis::flows",
    "diagnosis::triage",
    "session",
    "recording",
    "incident",
    "pcap",
    "export",
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

/// Crates and modules that other systems than Linux lack; a name that ends in `*` is a beginning.
const NOT_EVERYWHERE: [&str; 10] = [
    "aya",
    "aya_log",
    "aya_obj",
    "libc",
    "netlink_sys",
    "std::os",
    "tokio::io::unix",
    "tokio::net::Unix*",
    "tokio::net::unix",
    "tokio::signal::unix",
];

/// Whether another system than Linux lacks this path.
fn is_not_everywhere(path: &[String]) -> bool {
    let text = path.join("::");
    NOT_EVERYWHERE.iter().any(|name| match name.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => text.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::")),
    })
}

/// Whether an attribute `#[cfg(…)]` leaves its item out on some system, or out of the program.
fn is_wall(attribute: &TokenStream) -> bool {
    let text = attribute.to_string();
    let words: Vec<_> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    words.first() == Some(&"cfg")
        && words.iter().any(|word| matches!(*word, "test" | "unix" | "windows" | "target_os"))
}

/// Separates the items behind a `cfg` from the others. Returns the others, and the names of the modules in other files
/// behind one.
fn without_walled(tokens: TokenStream) -> (TokenStream, Vec<String>) {
    let (mut open, mut modules) = (Vec::new(), Vec::new());
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match (&tree, trees.peek()) {
            (TokenTree::Punct(punct), Some(TokenTree::Group(group)))
                if punct.as_char() == '#'
                    && group.delimiter() == Delimiter::Bracket
                    && is_wall(&group.stream()) =>
            {
                trees.next();
                modules.extend(skip_item(&mut trees));
            }
            (TokenTree::Group(group), _) => {
                let (inside, _) = without_walled(group.stream());
                open.push(TokenTree::Group(Group::new(group.delimiter(), inside)));
            }
            _ => open.push(tree),
        }
    }
    (open.into_iter().collect(), modules)
}

/// Skips an item after its attribute; returns its name if it is a module in another file.
fn skip_item(trees: &mut impl Iterator<Item = TokenTree>) -> Option<String> {
    let mut words = Vec::new();
    for tree in trees {
        match tree {
            TokenTree::Ident(ident) => words.push(ident.to_string()),
            TokenTree::Punct(punct) if punct.as_char() == ';' => {
                let at = words.iter().position(|word| word == "mod")?;
                return words.get(at + 1).cloned();
            }
            // An element of a list.
            TokenTree::Punct(punct) if punct.as_char() == ',' => return None,
            // The braces of a `use` end with a semicolon.
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Brace && !words.iter().any(|word| word == "use") =>
            {
                return None;
            }
            _ => {}
        }
    }
    None
}

/// Collects the paths that do not begin in this crate.
fn foreign(tokens: TokenStream, out: &mut Vec<Named>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        match tree {
            TokenTree::Ident(ident) => {
                at = rest(&trees, at + 1, vec![ident.to_string()], ident.span().start().line, out);
                continue;
            }
            TokenTree::Group(group) => foreign(group.stream(), out),
            _ => {}
        }
        at += 1;
    }
}

/// The paths of one file that another system than Linux lacks, and the child modules behind a `cfg`.
fn bound_to_linux(file: &Path, source: &str) -> (Vec<String>, Vec<String>) {
    let tokens = source.parse::<TokenStream>().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let (open, walled) = without_walled(tokens);
    let mut found = Vec::new();
    foreign(open, &mut found);
    found.retain(|named| is_not_everywhere(&named.path));
    let places =
        found.iter().map(|named| format!("{}:{}: {}", file.display(), named.line, named.path.join("::")));
    (places.collect(), walled)
}

#[test]
fn what_only_linux_has_stands_behind_a_cfg() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![(root.join("lib.rs"), Vec::new())];
    modules(&root, &[], &mut files);
    // Parents before their children.
    files.sort_by_key(|(_, module)| module.len());
    let mut walls: Vec<Vec<String>> = Vec::new();
    let mut offences = Vec::new();
    for (file, module) in files {
        if walls.iter().any(|wall| module.starts_with(wall)) {
            continue;
        }
        let (found, walled) = bound_to_linux(&file, &fs::read_to_string(&file).unwrap());
        offences.extend(found);
        walls.extend(walled.into_iter().map(|name| [module.as_slice(), &[name]].concat()));
    }
    let loader = ["kernel", "loader"].map(str::to_owned).to_vec();
    assert!(walls.contains(&loader), "the walls were not found: {walls:?}");
    assert!(offences.is_empty(), "only Linux has these; put them behind a cfg:\n{}", offences.join("\n"));
}

#[test]
fn a_path_that_only_linux_has_is_named() {
    let seen = |source: &str| bound_to_linux(Path::new("x.rs"), source);
    let (found, walled) = seen(
        "use std::{fs,\n os::unix::fs::MetadataExt as _};\nfn f() { libc::poll(); tokio::net::UnixStream::connect(p) }",
    );
    assert_eq!(
        found,
        [
            "x.rs:2: std::os::unix::fs::MetadataExt",
            "x.rs:3: libc::poll",
            "x.rs:3: tokio::net::UnixStream::connect"
        ]
    );
    assert!(walled.is_empty());
    let (found, walled) = seen(
        "#[cfg(target_os = \"linux\")] pub(crate) mod loader;\n#[cfg(unix)] use tokio::signal::unix::{Signal, signal};\n\
         #[cfg(unix)] mod unix { use std::os::unix; }\nconst K: &[T] = &[#[cfg(target_os = \"linux\")] aya::T, libc::T];\n\
         #[cfg(test)] mod tests { use libc::c_int; }\n#[cfg(feature = \"x\")] use aya::Ebpf;",
    );
    assert_eq!(found, ["x.rs:4: libc::T", "x.rs:6: aya::Ebpf"]);
    assert_eq!(walled, ["loader"]);
    assert!(seen("use tracing::log; use std::{io, net::IpAddr}; use crate::libc::x;").0.is_empty());
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
