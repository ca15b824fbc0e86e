use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

fn parse(text: &str) -> Result<Config, (u64, String)> {
    Config::parse(text)
}

#[test]
fn the_version_alone_gives_the_defaults() {
    let config = parse("version: 1\n").unwrap();
    assert_eq!(config.sample.to_string(), "1/100");
    assert_eq!(config.drain.get(), Duration::from_secs(10));
    assert_eq!(config.metrics, MetricsConfig::default());
    assert_eq!(config.recorder.max_bytes.get(), 256 << 20);
    assert_eq!(config.stream.socket.as_deref(), Some(Path::new(SOCKET)));
    assert!(config.recorder.folder.is_none() && config.otlp.endpoint.is_none());
}

#[test]
fn everything_at_once() {
    let config = parse(
        "version: 1\nnode: worker-1\nsample: 1/1\nhooks: full\nattach: kprobe\noutput: json\ngrace: 0s\nbuffer: 65536\n\
         metrics:\n  listen: '[::]:9478'\n  tls: {certificate: /tls/tls.crt, key: /tls/tls.key}\n  \
         authorization: token\nhealth:\n  listen: null\nrecorder: {folder: /var/lib/viptrace, max_age: 2d}\n\
         otlp:\n  endpoint: https://collector:4318/base\n  headers: {x-tenant: a}\nlog: {level: warn}\n",
    )
    .unwrap();
    assert_eq!(config.grace.map(Span::get), Some(Duration::ZERO));
    assert_eq!(config.attach, AttachChoice::Kprobe);
    assert_eq!(config.buffer.get(), 65536);
    assert_eq!(config.health.listen, None);
    assert_eq!(config.recorder.max_age.get(), Duration::from_hours(48));
    assert_eq!(config.metrics.authorization, Authorization::Token);
}

#[test]
fn an_error_names_the_line_and_the_key() {
    for (text, line, key, why) in [
        ("version: 1\nsampel: 1/10\n", 2, "sampel", "unknown field"),
        ("version: 1\nmetrics:\n  listen: null\n  max_serie: 5\n", 4, "max_serie", "unknown field"),
        ("version: 2\n", 1, "version", "2 is outside 1 to 1"),
        ("version: 1\nsample: 1/0\n", 2, "sample", "write 1/N"),
        ("version: 1\ndrain: 10\n", 2, "drain", "not a duration"),
        ("version: 1\ndrain: 1h\n", 2, "drain", "outside 1s to 10m"),
        ("version: 1\nrecorder:\n  max_bytes: 1M\n", 3, "max_bytes", "outside 4M to 1024G"),
        ("version: 1\nrecorder:\n  max_bytes: 4M\n  segment_bytes: 3M\n", 4, "segment_bytes", "half"),
        ("version: 1\nmetrics:\n  authorization: token\n", 3, "authorization", "metrics.tls"),
        ("version: 1\nmetrics:\n  listen: localhost\n", 3, "listen", "address"),
        ("version: 1\ncluster:\n  folder: /a\n  context: b\n", 3, "cluster.folder", "remove"),
        ("version: 1\notlp:\n  endpoint: collector:4318\n", 3, "otlp.endpoint", "URL"),
        ("version: 1\notlp:\n  headers: {\"a b\": c}\n", 3, "otlp.headers", "HTTP"),
        ("version: 1\nhooks: some\n", 2, "hooks", "some"),
        ("version: 1\nattach: uprobe\n", 2, "attach", "uprobe"),
        ("version: 1\nnode: a\nnode: b\n", 3, "node", "duplicate"),
    ] {
        let (found, said) = parse(text).unwrap_err();
        assert!(said.contains(key) && said.contains(why), "{text}: {said}");
        assert_eq!(found, line, "{text}: {said}");
        assert!(!said.contains('\n'), "{said}");
    }
    assert!(parse("").unwrap_err().1.contains("version"), "{:?}", parse(""));
}

#[test]
fn keys_that_need_a_restart_are_named() {
    let old = parse("version: 1\n").unwrap();
    let new = parse(
        "version: 1\nsample: 1/5\ndecisions: 65536\nhooks: full\nattach: fentry\nstream: {socket: null}\n",
    )
    .unwrap();
    assert_eq!(old.needs_restart(&new), ["hooks", "attach", "sample", "decisions", "stream.socket"]);
    assert!(old.needs_restart(&old).is_empty());
}

/// Every key with a value of its own, as `section.key`.
fn keys() -> BTreeSet<String> {
    let mut config = parse("version: 1\n").unwrap();
    config.metrics.tls = Some(TlsConfig { certificate: "a".into(), key: "b".into() });
    let mut found = BTreeSet::new();
    collect("", &serde_json::to_value(&config).unwrap(), &mut found);
    found
}

fn collect(prefix: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let prefix = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                collect(&prefix, value, found);
            }
        }
        _ => {
            found.insert(prefix.to_owned());
        }
    }
}

#[test]
fn the_page_lists_every_key_with_its_default() {
    let page = include_str!("../../../../docs/agent.md");
    let table = page.split("## Configuration").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split(" | ").map(|cell| cell.trim_matches(['|', ' ', '`'])).collect())
        .collect();
    let listed: BTreeSet<String> = rows.iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(listed, keys());
    let defaults = serde_json::to_value(parse("version: 1\n").unwrap()).unwrap();
    for row in &rows {
        let value = row[0].split('.').fold(&defaults, |value, key| &value[key]);
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Null => continue,
            Value::Object(_) => "empty".to_owned(),
            other => other.to_string(),
        };
        assert!(row[0] == "version" || row[2] == text, "{row:?}: {text}");
    }
    let restart: BTreeSet<&str> = rows.iter().filter(|row| row[4] == "no").map(|row| row[0]).collect();
    let of_code = parse("version: 1\n").unwrap().needs_restart(
        &parse(
            "version: 1\nnode: a\ncluster: {folder: a}\ngrace: 1s\nhooks: full\nattach: kprobe\nsample: 1/2\nmax_flows: 16\ndecisions: 1024\nbuffer: 4K\n\
             kernel_stats: true\nmetrics: {listen: null}\nhealth: {listen: null}\nstream: {socket: null}\n",
        )
        .unwrap(),
    );
    let sections: BTreeSet<&str> =
        restart.iter().map(|key| if key.starts_with("cluster.") { "cluster" } else { key }).collect();
    assert_eq!(sections, of_code.into_iter().collect());
}

#[test]
fn the_stored_schema_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/agent.schema.json");
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("UPDATE_PAGES").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap() == text, "UPDATE_PAGES=1 writes {}", path.display());
}

#[test]
fn the_schema_accepts_what_the_agent_accepts() {
    let validator = jsonschema::validator_for(&serde_json::to_value(schema()).unwrap()).unwrap();
    for (text, valid) in [
        ("version: 1", true),
        ("{version: 1, sample: 1/10, buffer: 65536, drain: 10s, health: {listen: null}}", true),
        ("{version: 1, recorder: {folder: /x, max_bytes: 1G}}", true),
        ("{version: 1, metrics: {tls: {certificate: a, key: b}, authorization: token}}", true),
        ("{version: 2}", false),
        ("{version: 1, sampel: 1/10}", false),
        ("{version: 1, metrics: {listem: null}}", false),
        ("{version: 1, stream: {max_readers: 0}}", false),
        ("{version: 1, hooks: some}", false),
        ("{version: 1, attach: fentry}", true),
        ("{version: 1, attach: uprobe}", false),
        ("{}", false),
    ] {
        let value: Value = serde_saphyr::from_str(text).unwrap();
        assert_eq!(validator.is_valid(&value), valid, "{text}");
        assert_eq!(parse(text).is_ok(), valid, "{text}");
    }
}
