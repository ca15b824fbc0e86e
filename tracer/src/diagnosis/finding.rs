//! One finding: a class with its evidence, before it becomes the record of a flow or of a check.
//!
//! Owns the statements of every rule and check: evidence for and against, what was not observed, and which of the
//! class's actions apply. The knowledge base has the actions' texts and risks.

use std::{
    borrow::Cow,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    class::{Action, Class, Confidence, Domain, Kind, Safety, Severity, action},
    cluster::Key,
    node::ProxyMode,
    text::{phrase, sentence, word},
    time::Timestamp,
    verdict::{self, Evidence, EvidenceType, Mitigation, ServiceRef, Text},
};

/// How much a finding of a check matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Connections fail now, or changes are not followed.
    Fault,
    /// Connections can fail, or some fail under a condition that was not observed.
    Warning,
    /// Worth knowing; no action is needed.
    Note,
}

/// The steps of the triage, in its order (K13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Endpoints,
    KubeProxy,
    Rules,
    Conntrack,
    Path,
}

/// Whether findings have sentences. A flow that is only counted needs none, and they cost more than the judgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Words {
    #[default]
    Written,
    /// Class, domain, severity and confidence are those of the finding with words. Its texts and its lists are empty.
    Omitted,
}

impl Words {
    /// The text, if it is to be written.
    pub(crate) fn of(self, text: impl Say) -> Text {
        match self {
            Self::Written => text.say(),
            Self::Omitted => Text::Borrowed(""),
        }
    }
}

/// What can be a text of a finding.
pub(crate) trait Say {
    fn say(self) -> Text;
}

impl Say for Text {
    fn say(self) -> Text {
        self
    }
}

impl Say for String {
    fn say(self) -> Text {
        self.into()
    }
}

impl Say for &'static str {
    fn say(self) -> Text {
        self.into()
    }
}

impl Say for fmt::Arguments<'_> {
    fn say(self) -> Text {
        sentence(self).into()
    }
}

/// The finding of a rule or a check.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finding {
    pub class: Class,
    pub domain: Domain,
    pub severity: Severity,
    pub confidence: Confidence,
    /// For a flow: kube-proxy's own fault that its figures show behind this one.
    pub behind: Option<Class>,
    /// For a flow: an event that was not observed would name another cause.
    pub rests_on_absence: bool,
    /// For a check.
    pub level: Level,
    /// For a check, unless it is the step of the check itself.
    pub step: Option<Step>,
    /// The check that found it; `None` until that check has ended.
    pub check: Option<&'static str>,
    /// `None` if words are omitted. On the heap, because findings of flows that are only counted move often.
    statement: Option<Box<Statement>>,
}

/// A finding moves some ten times before it is a record or a count.
const _: () = assert!(size_of::<Finding>() <= 32);

/// What a finding says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Statement {
    /// The cause in one sentence without a full stop.
    pub detail: Text,
    pub evidence: Vec<Evidence>,
    pub against: Vec<Evidence>,
    pub unobserved: Vec<Text>,
    /// For a check: the only Service that it affects.
    pub service: Option<ServiceRef>,
    pub since: Option<Timestamp>,
    /// Other classes that explain it, or look the same.
    related: Vec<Class>,
    /// The class's usual actions, or those of a special case.
    now: Option<Vec<Action>>,
    later: Option<Vec<Action>>,
    /// The values of the actions' placeholders, quoted for a shell.
    values: Vec<(&'static str, Text)>,
}

/// That of a finding without words.
static UNSAID: Statement = Statement {
    detail: Text::Borrowed(""),
    evidence: Vec::new(),
    against: Vec::new(),
    unobserved: Vec::new(),
    service: None,
    since: None,
    related: Vec::new(),
    now: None,
    later: None,
    values: Vec::new(),
};

/// The room for the values in one action, which most actions do not exceed.
const VALUE_BYTES: usize = 48;

/// Between the domain and the detail of a root cause.
const SEPARATOR: &str = " — ";

impl Finding {
    /// A fault of high confidence with the domain, severity and actions of its class, which other methods can change.
    pub(crate) fn new(class: Class, detail: impl Say) -> Self {
        Self::in_words(Words::Written, class, detail)
    }

    /// As [`Self::new`], with or without texts.
    pub(crate) fn in_words(words: Words, class: Class, detail: impl Say) -> Self {
        let statement = match words {
            Words::Written => Some(Box::new(Statement { detail: detail.say(), ..Statement::default() })),
            Words::Omitted => None,
        };
        Self {
            class,
            domain: class.domain(),
            severity: class.entry().severity,
            confidence: Confidence::High,
            behind: None,
            rests_on_absence: false,
            level: Level::Fault,
            step: None,
            check: None,
            statement,
        }
    }

    /// The texts and lists, which are empty without words.
    pub(crate) fn said(&self) -> &Statement {
        self.statement.as_deref().unwrap_or(&UNSAID)
    }

    /// The same, taken out of it.
    pub(crate) fn into_said(self) -> Statement {
        self.statement.map(|statement| *statement).unwrap_or_default()
    }

    pub(crate) fn has_words(&self) -> bool {
        self.statement.is_some()
    }

    /// Says something, if it has words.
    pub(crate) fn say(&mut self, change: impl FnOnce(&mut Statement)) {
        if let Some(statement) = &mut self.statement {
            change(statement);
        }
    }

    /// The same, in a chain.
    fn saying(mut self, change: impl FnOnce(&mut Statement)) -> Self {
        self.say(change);
        self
    }

    /// Sets another domain than the class's first: one of those that the class allows.
    pub(crate) fn domain(mut self, domain: Domain) -> Self {
        debug_assert!(self.class.entry().domains.contains(&domain), "{} is not of {domain}", self.class);
        self.domain = domain;
        self
    }

    pub(crate) fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    pub(crate) fn confidence(mut self, confidence: Confidence) -> Self {
        self.confidence = confidence;
        self
    }

    /// Lowers the confidence to this one, if it is higher.
    pub(crate) fn at_most(&mut self, confidence: Confidence) {
        self.confidence = self.confidence.min(confidence);
    }

    /// Lowers the confidence by one step.
    pub(crate) fn doubt(&mut self) {
        self.confidence = self.confidence.lower();
    }

    pub(crate) fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    pub(crate) fn step(mut self, step: Step) -> Self {
        self.step = Some(step);
        self
    }

    pub(crate) fn service(self, key: &Key, port: &str) -> Self {
        self.saying(|said| {
            said.service = Some(ServiceRef {
                namespace: Arc::clone(&key.namespace),
                name: Arc::clone(&key.name),
                port: port.into(),
            });
        })
    }

    pub(crate) fn since(self, since: Option<Timestamp>) -> Self {
        self.saying(|said| said.since = known(since))
    }

    /// Observed by a kernel hook. (Every verdict also has the evidence of its flow's sightings.)
    pub(crate) fn kernel(self, time: Option<Timestamp>, content: impl Say) -> Self {
        self.evidence(EvidenceType::Kernel, time, content)
    }

    /// Read from the Kubernetes API.
    pub(crate) fn api(self, time: Option<Timestamp>, content: impl Say) -> Self {
        self.evidence(EvidenceType::Api, time, content)
    }

    /// Read from the node.
    pub(crate) fn node(self, time: Option<Timestamp>, content: impl Say) -> Self {
        self.evidence(EvidenceType::Node, time, content)
    }

    fn evidence(self, r#type: EvidenceType, time: Option<Timestamp>, content: impl Say) -> Self {
        self.saying(|said| said.evidence.push(Evidence { r#type, time: known(time), content: content.say() }))
    }

    pub(crate) fn note(&mut self, evidence: Evidence) {
        self.say(|said| said.evidence.push(evidence));
    }

    /// Evidence against the finding, or for another explanation.
    pub(crate) fn against(
        mut self,
        r#type: EvidenceType,
        time: Option<Timestamp>,
        content: impl Say,
    ) -> Self {
        self.note_against(r#type, time, content);
        self
    }

    pub(crate) fn note_against(&mut self, r#type: EvidenceType, time: Option<Timestamp>, content: impl Say) {
        self.say(|said| said.against.push(Evidence { r#type, time: known(time), content: content.say() }));
    }

    pub(crate) fn note_unobserved(&mut self, what: impl Say) {
        self.say(|said| said.unobserved.push(what.say()));
    }

    /// A fact that could not be observed and would have shown more.
    pub(crate) fn unobserved(mut self, what: impl Say) -> Self {
        self.note_unobserved(what);
        self
    }

    /// States that the finding holds only because no event names another cause: it is unknown near a loss of events.
    pub(crate) fn if_nothing_was_lost(mut self) -> Self {
        self.rests_on_absence = true;
        self
    }

    /// Other classes that explain it, or look the same.
    pub(crate) fn related(self, classes: &[Class]) -> Self {
        self.saying(|said| said.related.extend_from_slice(classes))
    }

    /// Replaces the usual actions by the class's actions for this case.
    pub(crate) fn now(self, actions: &[Action]) -> Self {
        debug_assert!(
            actions.iter().all(|action| self.class.entry().now.contains(action)),
            "an action that {} does not list: {actions:?}",
            self.class
        );
        self.saying(|said| said.now = Some(actions.to_vec()))
    }

    /// Leaves out advice to move to the mode that the node is already in.
    pub(crate) fn in_mode(self, mode: Option<ProxyMode>) -> Self {
        let is_move = |action: &Action| *action == action::MOVE_TO_NFTABLES;
        if mode == Some(ProxyMode::Nftables) && self.chosen_later().any(is_move) {
            let later = self.chosen_later().filter(|action| !is_move(action)).copied().collect();
            return self.saying(|said| said.later = Some(later));
        }
        self
    }

    /// Adds one of the class's actions for a special case, before the usual ones.
    pub(crate) fn first(self, action: Action) -> Self {
        let usual: Vec<Action> = chosen(None, self.class.entry().now).copied().collect();
        self.now(&[&[action], &*usual].concat())
    }

    /// For leftovers of another mode (C10): kube-proxy removes those at its start only between nftables and the other modes
    /// (`platformCleanup` in `cmd/kube-proxy/app/server_linux.go`, since 1.29).
    pub(crate) fn cleaned_by_restart(self, is_of_nftables: bool) -> Self {
        if !is_of_nftables {
            return self;
        }
        let mut now: Vec<Action> = chosen(None, self.class.entry().now).copied().collect();
        now.insert(now.len().min(1), action::RESTART_CLEANS);
        self.now(&now)
    }

    /// Replaces the preventive actions by those of this case.
    pub(crate) fn later(self, actions: &[Action]) -> Self {
        debug_assert!(
            actions.iter().all(|action| self.class.entry().later.contains(action)),
            "an action that {} does not list: {actions:?}",
            self.class
        );
        self.saying(|said| said.later = Some(actions.to_vec()))
    }

    /// Sets the value of a placeholder, quoted for a shell: the caller quotes foreign names.
    pub(crate) fn fill(self, name: &'static str, value: impl Say) -> Self {
        self.saying(|said| said.values.push((name, value.say())))
    }

    /// Sets the command that shows the endpoint in the rules of kube-proxy's mode.
    pub(crate) fn fill_rules_of(self, endpoint: SocketAddr, mode: Option<ProxyMode>) -> Self {
        let command = fmt::from_fn(|f| match (mode, endpoint.ip()) {
            (Some(ProxyMode::Nftables), IpAddr::V4(ip)) => {
                write!(f, "nft list table ip kube-proxy | grep {ip}")
            }
            (Some(ProxyMode::Nftables), IpAddr::V6(ip)) => {
                write!(f, "nft list table ip6 kube-proxy | grep {ip}")
            }
            (Some(ProxyMode::Ipvs), _) => write!(f, "ipvsadm -Ln | grep -F '{endpoint}'"),
            (_, IpAddr::V4(_)) => write!(f, "iptables-save -t nat | grep {endpoint}"),
            (_, IpAddr::V6(_)) => write!(f, "ip6tables-save -t nat | grep -F '{endpoint}'"),
        });
        self.fill("RULES_OF_ENDPOINT", format_args!("{command}"))
    }

    /// Turns the finding into one that claims nothing, because of `reason`. The severity shows whether the flow failed.
    pub(crate) fn into_unknown(self, reason: &str) -> Self {
        let class = self.class;
        let is_fault = class.is_fault();
        let finding = self.saying(|said| {
            let looks = fmt::from_fn(|f| {
                if is_fault {
                    write!(f, "like {class}: {}", said.detail)
                } else {
                    write!(f, "healthy: {}", said.detail)
                }
            });
            said.detail = phrase!("{reason}; the other evidence looks {looks}").into();
            if is_fault {
                said.related.insert(0, class);
            }
            (said.now, said.later) = (Some(Vec::new()), Some(Vec::new()));
        });
        Self {
            class: Class::Unknown,
            domain: Class::Unknown.domain(),
            severity: if is_fault { Class::Unknown.entry().severity } else { Severity::None },
            confidence: Confidence::Low,
            ..finding
        }
    }

    /// `domain — detail`.
    pub(crate) fn root_cause(&self) -> Text {
        Self::root_cause_of(self.domain, self.said().detail.clone())
    }

    /// The same, in the memory of the detail if that has room.
    pub(crate) fn root_cause_of(domain: Domain, detail: Text) -> Text {
        match detail {
            Text::Borrowed(detail) => [domain.as_str(), SEPARATOR, detail].concat().into(),
            Text::Owned(mut text) => {
                text.insert_str(0, SEPARATOR);
                text.insert_str(0, domain.as_str());
                text.into()
            }
        }
    }

    /// A root cause without its domain, which the class implies.
    pub(crate) fn detail_of(root_cause: &str) -> &str {
        root_cause.split_once(SEPARATOR).map_or(root_cause, |(_, detail)| detail)
    }

    fn chosen_now(&self) -> impl Iterator<Item = &Action> {
        chosen(self.said().now.as_deref(), self.class.entry().now)
    }

    fn chosen_later(&self) -> impl Iterator<Item = &Action> {
        chosen(self.said().later.as_deref(), self.class.entry().later)
    }

    /// The actions; `value` returns the record's value, unquoted, for a placeholder that the rule did not set.
    pub(crate) fn mitigation<'v>(&self, value: impl Fn(&str) -> Option<Cow<'v, str>>) -> Mitigation {
        let of_rule = |name: &str| self.said().values.iter().find(|(known, _)| *known == name);
        let value = |name: &str| match of_rule(name) {
            Some((_, value)) => Some(Cow::Borrowed(&**value)),
            None => value(name).map(|value| Cow::Owned(word(&value))),
        };
        let append = |mut text: String, action: &Action| {
            if !text.is_empty() {
                text.push_str("; ");
            }
            action.fill(&mut text, value);
            text
        };
        let room = |bytes: usize, action: &Action| bytes + action.text.len() + VALUE_BYTES;
        let (now, later) = (self.chosen_now().fold(0, room), self.chosen_later().fold(0, room));
        Mitigation {
            immediate: self.chosen_now().fold(String::with_capacity(now), append).into(),
            long_term: self.chosen_later().fold(String::with_capacity(later), append).into(),
            safety: self.chosen_now().map(|action| action.safety).max().unwrap_or(Safety::ReadOnly),
            steps: self
                .chosen_now()
                .map(|action| verdict::Step { text: action.mark(value), safety: action.safety })
                .collect(),
        }
    }

    /// The class, its related classes, and its upstream references.
    pub(crate) fn cross_reference(&self) -> Vec<Text> {
        let own = !matches!(self.class.kind(), Kind::Ok | Kind::Unknown);
        let classes = own.then_some(&self.class).into_iter().chain(&self.said().related);
        let references = self.class.entry().references.iter().copied();
        classes.map(|class| class.id()).chain(references).map(Text::Borrowed).collect()
    }

    /// Whether it can explain a failure of this Service.
    pub(crate) fn concerns(&self, key: &Key) -> bool {
        self.said()
            .service
            .as_ref()
            .is_none_or(|service| *service.namespace == *key.namespace && *service.name == *key.name)
    }
}

/// The actions of the special case, or else those of the class that need none.
fn chosen<'a>(special: Option<&'a [Action]>, of_class: &'a [Action]) -> impl Iterator<Item = &'a Action> {
    let is_special = special.is_some();
    special.unwrap_or(of_class).iter().filter(move |action| is_special || action.when.is_empty())
}

/// `None` for `Timestamp::MIN`, which is never printed.
fn known(time: Option<Timestamp>) -> Option<Timestamp> {
    time.filter(|time| *time > Timestamp::MIN)
}
