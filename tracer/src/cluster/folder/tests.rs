//! Folders as people make them, and malformed ones.
use std::time::Duration;

use tempfile::TempDir;

use super::*;

fn folder(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn read_folder(files: &[(&str, &str)]) -> Result<Folder, FolderError> {
    read(folder(files).path(), Duration::from_mins(1))
}

const SERVICE: &str =
    r#"{"kind":"Service","metadata":{"name":"a","namespace":"n"},"spec":{"clusterIP":"10.0.0.1"}}"#;

#[test]
fn lists_of_one_kind_of_several_and_single_objects_are_recognised() {
    let mixed = format!(
        r#"{{"kind":"List","items":[{SERVICE},{{"kind":"Pod","metadata":{{"name":"p","namespace":"n"}}}},{{"kind":"Secret"}}]}}"#
    );
    let node = r#"{"kind":"Node","metadata":{"name":"w"}}"#;
    let slices = r#"{"kind":"EndpointSliceList","items":[]}"#;
    let read =
        read_folder(&[("x.json", &mixed), ("y.json", node), ("z.json", slices), ("notes.txt", "{")]).unwrap();
    assert_eq!(read.warnings, []);
    assert_eq!(read.history.counts().objects, 3);
    assert!(Kind::ALL.into_iter().all(|kind| read.history.knows(kind)));
    assert!(read.taken.is_some());
}

#[test]
fn a_bad_file_is_named_and_the_rest_is_read() {
    let read = read_folder(&[("bad.json", "{\"kind\":"), ("services.json", SERVICE)]).unwrap();
    let said = read.warnings.first().unwrap().to_string();
    assert!(said.contains("bad.json is unreadable at line 1: EOF"), "{said}");
    assert!(read.warnings.contains(&Warning::NoList { kind: Kind::Pod }), "{:?}", read.warnings);
    assert_eq!(read.history.services().count(), 1);
}

#[test]
fn a_folder_without_objects_is_an_error_that_says_how_to_make_one() {
    let error = read_folder(&[("a.json", "[1]")]).unwrap_err();
    assert!(error.hint().unwrap().contains("kubectl get services,endpointslices,pods,nodes"), "{error:?}");
    let error = read(Path::new("/nonexistent"), Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("/nonexistent") && error.hint().is_some(), "{error:?}");
}

#[test]
fn bad_lines_of_a_stream_are_counted_by_line() {
    let stream = "nonsense\n{\"type\":\"BOOKMARK\",\"object\":{}}\n{\"object\":{}}\n";
    let read = read_folder(&[("services.json", SERVICE), ("services.watch.jsonl", stream)]).unwrap();
    let line = |warning: &Warning| match warning {
        Warning::Line { name, error } if name.ends_with(".watch.jsonl") => Some(error.line),
        _ => None,
    };
    assert_eq!(read.warnings.iter().filter_map(line).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_list_made_after_its_stream_ends_the_story() {
    let old = r#"{"type":"ADDED","object":{"kind":"Service","metadata":{"name":"old","namespace":"n","resourceVersion":"5"}}}"#;
    let list = r#"{"kind":"ServiceList","metadata":{"resourceVersion":"9"},"items":[]}"#;
    let read = read_folder(&[("services.json", list), ("services.watch.jsonl", old)]).unwrap();
    assert_eq!(read.history.services().count(), 0, "what the later list lacks is gone");
}
