//! Objects that the history does not follow: versions, `DaemonSet`s, Events.

use serde_json::Value;

use crate::parse::ParseError;

/// The most Events kept.
const MAX_EVENTS: usize = 10_000;

/// A `DaemonSet` that may be kube-proxy's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSet {
    pub name: String,
    pub image: String,
    pub desired: u64,
    pub scheduled: u64,
    pub ready: u64,
    pub updated: u64,
}

/// An Event about kube-proxy or a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub object: String,
    pub reason: String,
    pub message: String,
    pub warning: bool,
    pub count: u64,
    pub last: String,
}

pub(super) fn api_version(text: &str) -> Result<String, ParseError> {
    let value: Value = serde_json::from_str(text)?;
    // The server's own answer, or `kubectl version -o json`, which also has the client's version.
    let version = value.pointer("/serverVersion/gitVersion").or_else(|| value.get("gitVersion"));
    let version = version.and_then(Value::as_str).map(|version| version.chars().take(80).collect());
    version.ok_or_else(|| ParseError::nothing_in(text, "a version of the API server"))
}

fn items(text: &str) -> Result<Vec<Value>, ParseError> {
    match serde_json::from_str::<Value>(text)?.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => Ok(items),
        _ => Err(ParseError::nothing_in(text, "a list of objects")),
    }
}

pub(super) fn daemon_sets(text: &str) -> Result<Vec<DaemonSet>, ParseError> {
    let set = |item: &Value| {
        let name = item.pointer("/metadata/name")?.as_str()?.to_owned();
        let images = item.pointer("/spec/template/spec/containers")?.as_array()?;
        let image = images
            .iter()
            .filter_map(|container| container.get("image")?.as_str())
            .find(|image| image.contains("kube-proxy"));
        let count =
            |field: &str| item.pointer(&format!("/status/{field}")).and_then(Value::as_u64).unwrap_or(0);
        let is_it = name.contains("kube-proxy") || image.is_some();
        is_it.then(|| DaemonSet {
            image: image.unwrap_or_default().to_owned(),
            desired: count("desiredNumberScheduled"),
            scheduled: count("currentNumberScheduled"),
            ready: count("numberReady"),
            updated: count("updatedNumberScheduled"),
            name,
        })
    };
    Ok(items(text)?.iter().filter_map(set).collect())
}

pub(super) fn events(text: &str) -> Result<Vec<Event>, ParseError> {
    let event = |item: &Value| {
        let field =
            |pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        // The older form of the API, then the newer.
        let (object, regarding) = (field("/involvedObject/name"), field("/regarding/name"));
        let last = [field("/lastTimestamp"), field("/series/lastObservedTime"), field("/eventTime")];
        Event {
            object: if object.is_empty() { regarding } else { object },
            reason: field("/reason"),
            message: if field("/message").is_empty() { field("/note") } else { field("/message") },
            warning: field("/type") == "Warning",
            count: item
                .get("count")
                .or_else(|| item.pointer("/series/count"))
                .and_then(Value::as_u64)
                .unwrap_or(1),
            last: last.into_iter().find(|time| !time.is_empty()).unwrap_or_default(),
        }
    };
    Ok(items(text)?.iter().take(MAX_EVENTS).map(event).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_the_server_in_both_forms() {
        assert_eq!(api_version("{\"gitVersion\": \"v1.33.1\"}").as_deref(), Ok("v1.33.1"));
        let both = "{\"clientVersion\": {\"gitVersion\": \"v1.20.0\"}, \"serverVersion\": {\"gitVersion\": \"v1.33.1\"}}";
        assert_eq!(api_version(both).as_deref(), Ok("v1.33.1"));
        assert!(api_version("[]").is_err());
    }

    #[test]
    fn events_in_both_forms() {
        let text = r#"{"items": [
            {"involvedObject": {"name": "kube-proxy-x"}, "reason": "BackOff", "message": "m", "type": "Warning", "count": 7, "lastTimestamp": "t"},
            {"regarding": {"name": "worker-1"}, "reason": "IPVSDeprecation", "note": "n", "eventTime": "e"}]}"#;
        let events = events(text).unwrap();
        assert_eq!(
            (events[0].object.as_str(), events[0].count, events[0].warning),
            ("kube-proxy-x", 7, true)
        );
        assert_eq!((events[1].message.as_str(), events[1].last.as_str()), ("n", "e"));
    }
}
