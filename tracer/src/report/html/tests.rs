//! The page of a small story, of a hostile one, and of the largest one.

use std::collections::BTreeSet;

use proptest::prelude::*;
use roxmltree::{Document, Node, ParsingOptions};

use super::*;
use crate::{
    class::Confidence,
    incident::Change,
    report::fixture::{fault, ok, snapshot},
    text::safe,
    verdict::{Evidence, EvidenceType, Verdict},
};

/// Everything that the page may contain: no script, and nothing that loads anything.
const ELEMENTS: [&str; 44] = [
    "a",
    "body",
    "caption",
    "circle",
    "code",
    "dd",
    "desc",
    "details",
    "div",
    "dl",
    "dt",
    "figcaption",
    "figure",
    "footer",
    "h1",
    "h2",
    "h3",
    "h4",
    "head",
    "header",
    "html",
    "li",
    "line",
    "main",
    "meta",
    "nav",
    "ol",
    "p",
    "pre",
    "rect",
    "section",
    "span",
    "strong",
    "style",
    "summary",
    "svg",
    "table",
    "tbody",
    "td",
    "text",
    "th",
    "thead",
    "time",
    "title",
];
const MORE_ELEMENTS: [&str; 2] = ["tr", "ul"];

fn change(verdict: &Verdict) -> Change {
    Change { node: Some("worker-1".into()), change: verdict.changes_around.first().unwrap().clone() }
}

fn ending() -> Ending {
    Ending {
        started: Timestamp::from_unix_secs(95),
        ended: Timestamp::from_unix_secs(110),
        gaps: vec!["no hook at tcp_send_reset".into()],
        ..Ending::default()
    }
}

fn page(story: &Story) -> String {
    let messages = Messages { notes: vec!["replaying".into()], warnings: vec!["it was cut off".into()] };
    render(story, &["worker-1".into()], &ending(), &messages)
}

/// Reads the page as XML, which forgives nothing, and checks what holds for every page.
fn checked(text: &str, check: impl FnOnce(&Document<'_>)) {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).expect("a well-formed page");
    let elements = || document.descendants().filter(Node::is_element);
    for node in elements() {
        let name = node.tag_name().name();
        assert!(ELEMENTS.contains(&name) || MORE_ELEMENTS.contains(&name), "<{name}>");
        for attribute in node.attributes() {
            let is_handler = attribute.name().starts_with("on");
            assert!(!is_handler && !["src", "srcset", "style"].contains(&attribute.name()), "{attribute:?}");
        }
    }
    let ids: Vec<&str> = elements().filter_map(|node| node.attribute("id")).collect();
    assert_eq!(ids.len(), ids.iter().collect::<BTreeSet<_>>().len(), "an id is used twice");
    for link in elements().filter_map(|node| node.attribute("href")) {
        let id = link.strip_prefix('#').expect("a link within the page");
        assert!(ids.contains(&id), "{link} leads nowhere");
    }
    for label in
        elements().filter_map(|node| node.attribute("aria-labelledby")).flat_map(str::split_whitespace)
    {
        assert!(ids.contains(&label), "{label} labels nothing");
    }
    // Headings follow each other without a gap, for readers that list them.
    let levels = elements().filter_map(|node| node.tag_name().name().strip_prefix('h')?.parse::<u32>().ok());
    let last = levels.fold(0, |last, level| {
        assert!(level <= last + 1, "h{level} after h{last}");
        level
    });
    assert!(last > 0);
    for table in elements().filter(|node| node.has_tag_name("table")) {
        assert!(table.first_element_child().is_some_and(|child| child.has_tag_name("caption")));
        assert!(
            table
                .descendants()
                .filter(|node| node.has_tag_name("th"))
                .all(|head| head.has_attribute("scope"))
        );
    }
    check(&document);
}

#[test]
fn a_small_story() {
    let verdict = fault();
    let mut with_endpoint = fault();
    with_endpoint.flow.endpoint = Some(([10, 244, 1, 11], 8080).into());
    with_endpoint.flow.client.set_port(40002);
    let story = Story::of([verdict.clone(), with_endpoint, ok(40003)], &[change(&verdict)]);
    let text = page(&story);
    checked(&text, |_| {});
    let text = text.replace(STYLE, "[style]");
    let hash = text.split("sha256-").nth(1).and_then(|rest| rest.split("&#39;").next()).unwrap();
    let mut escaped = Html::default();
    escaped.lines(Class::C20.page());
    let text = text.replace(hash, "[hash]").replace(&escaped.into_string(), "[page]");
    snapshot("a_page", &text.replace(env!("CARGO_PKG_VERSION"), "[VERSION]"));
}

/// A later flow shows the cause better: the drawing and the evidence are of one flow.
#[test]
fn the_way_is_that_of_the_flow_which_the_evidence_is_about() {
    let vague = Verdict { confidence: Confidence::Low, ..fault() };
    let mut better = fault();
    better.flow.client.set_port(40002);
    better.flow.client_pod = Some("shop/other-client".into());
    better.flow.started = Timestamp::from_unix_secs(103);
    better.time = Timestamp::from_unix_secs(104);
    let text = page(&Story::of([vague, better], &[]));
    checked(&text, |document| {
        let way = document.descendants().find(|node| node.attribute("class") == Some("way")).unwrap();
        let said: String = way.descendants().filter_map(|node| node.text()).collect();
        assert!(said.contains("shop/other-client"), "{said}");
        let mut headings =
            document.descendants().filter(|node| node.has_tag_name("h4")).filter_map(|node| node.text());
        let heading = headings.find(|text| text.starts_with("The way of ")).unwrap();
        assert_eq!(heading, "The way of the failed flow of 00:01:43.000, which the evidence is about");
    });
}

#[test]
fn without_a_failure_the_page_states_that() {
    let text = page(&Story::of([ok(40001)], &[]));
    checked(&text, |document| {
        let heading = document.descendants().find(|node| node.has_tag_name("h1")).unwrap();
        assert_eq!(heading.text(), Some(outline::NO_FAILURE));
    });
}

/// A fault in which every text is this one.
fn hostile(text: &str) -> Verdict {
    let mut verdict = fault();
    let owned = || text.to_owned();
    let evidence = || Evidence { r#type: EvidenceType::Api, time: None, content: owned().into() };
    verdict.root_cause = format!("no_endpoints — {text}").into();
    if let Some(service) = &mut verdict.service {
        (service.namespace, service.name, service.port) = (text.into(), text.into(), text.into());
    }
    (verdict.flow.client_pod, verdict.flow.endpoint_pod) = (Some(owned()), Some(owned()));
    (verdict.flow.node, verdict.flow.endpoint) = (Some(owned()), Some(verdict.flow.client));
    verdict.flow.protocol = owned().into();
    (verdict.evidence, verdict.against) = (vec![evidence()], vec![evidence()]);
    verdict.unseen = vec![owned().into()];
    (verdict.kube_proxy_mode, verdict.kube_proxy_version) = (Some(owned().into()), Some(owned()));
    (verdict.mitigation.immediate, verdict.mitigation.long_term) = (owned().into(), owned().into());
    for change in &mut verdict.changes_around {
        (change.subject, change.text) = (owned().into(), owned().into());
    }
    verdict
}

fn hostile_page(text: &str) -> String {
    let verdict = hostile(text);
    let changes = [Change { node: Some(text.to_owned()), ..change(&verdict) }];
    let messages = Messages { notes: vec![text.to_owned()], warnings: vec![text.to_owned()] };
    let ending = Ending { gaps: vec![text.to_owned()], ..ending() };
    render(&Story::of([verdict], &changes), &[text.to_owned()], &ending, &messages)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn every_hostile_text_stays_text(
        text in prop_oneof![
            Just("<script>alert(1)</script>".to_owned()),
            Just("\"><img src=x onerror=alert(1)>".to_owned()),
            Just("]]></style><!-- \u{202e}\u{0}\n".to_owned()),
            r#"([<>&"'/=!-]|script|\PC|\p{Cc}|\u{202e})*"#,
        ]
    ) {
        let page = hostile_page(&text);
        checked(&page, |document| {
            let gaps = document.descendants().find(|node| node.attribute("id") == Some("not-known")).unwrap();
            let gap = gaps.descendants().find(|node| node.has_tag_name("li")).unwrap();
            assert_eq!(gap.text().unwrap_or_default(), safe(&text));
        });
        // Of the unsafe characters only line ends are left, which the program writes itself.
        prop_assert!(!page.contains(|it| it != '\n' && crate::text::is_unsafe(it)));
    }
}

#[test]
fn the_page_of_the_largest_story_is_bounded() {
    let verdicts = (0..3_000_u16).map(|number| {
        let mut verdict = hostile(&"<".repeat(700));
        if let Some(service) = &mut verdict.service {
            service.name = format!("service-{}", number % 300).into();
        }
        verdict.flow.client.set_port(number);
        verdict
    });
    let story = Story::of(verdicts, &[]);
    assert_eq!(story.chapters().iter().map(|chapter| chapter.records.len()).sum::<usize>(), 2_000);
    let text = page(&story);
    assert!(text.len() < 32 << 20, "{} bytes", text.len());
    assert!(text.contains(" left out here: "));
}

/// The contrast of two colours by WCAG 2.
fn contrast(one: &str, other: &str) -> f64 {
    let luminance = |colour: &str| {
        let digits = colour.trim_start_matches('#');
        let part = |index: usize| {
            let hex = if digits.len() == 3 {
                digits[index..=index].repeat(2)
            } else {
                digits[index * 2..index * 2 + 2].to_owned()
            };
            let value = f64::from(u8::from_str_radix(&hex, 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2)
    };
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn every_text_has_contrast_on_its_background() {
    let themes: Vec<&str> =
        STYLE.split(":root {").skip(1).filter_map(|rest| rest.split('}').next()).collect();
    assert_eq!(themes.len(), 3, "light, dark, print");
    for theme in themes {
        let colour = |name: &str| {
            let line = theme.lines().find_map(|line| line.trim().strip_prefix("--")?.strip_prefix(name));
            line.and_then(|value| value.strip_prefix(": ")).unwrap().trim_end_matches(';')
        };
        let texts =
            [("ink", "page"), ("ink", "box"), ("ink", "fault-box"), ("faint", "page"), ("faint", "box")];
        let texts = texts.into_iter().chain([("link", "page"), ("fault", "fault-box"), ("link", "box")]);
        for (text, background) in texts {
            let contrast = contrast(colour(text), colour(background));
            assert!(contrast >= 4.5, "{text} on {background}: {contrast:.1} in{theme}");
        }
        // The parts of a bar, beside its edge.
        for background in ["page", "others"] {
            assert!(contrast(colour("fault"), colour(background)) >= 3.0, "{background} in{theme}");
        }
    }
}
