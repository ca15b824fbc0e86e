//! Step 2: whether kube-proxy reads the API server (K2): C2, and an outage that is over.
//!
//! An error in the log proves that kube-proxy could not read, not that it still cannot: below `-v=2` no release logs the
//! recovery. A fault needs a proof that the outage lasts: a change that kube-proxy did not follow, rules that it has
//! never written, requests of which none has succeeded, or errors that go on until the log was read.

use std::collections::BTreeSet;

use super::{Facts, Finding, Level, proxy::logged_by};
use crate::{
    class::{Action, Class, Confidence, Severity, action},
    node::kube_proxy::{
        log::{Clock, LoggedError, Trouble},
        metrics::{Metrics, Reads},
    },
    text::{length, list},
    time::Timestamp,
    verdict::EvidenceType,
};

/// In seconds. kube-proxy cannot have received changes that are newer than its answers.
const UNHEARD_SECS: f64 = 15.0;
/// In seconds. An update that kube-proxy queued up to this long before a change may be that change: clocks differ.
const LATER_SECS: f64 = 5.0;
/// In seconds. client-go repeats a failed list after at most 30 s, doubled at random (`tools/cache/reflector.go`), and a
/// connection attempt takes up to 30 s: an outage that lasts has an error younger than this.
const REPEATS_SECS: f64 = 90.0;
/// In seconds. Errors over a shorter time are a blip: a restart of the API server, a new leader.
const BLIP_SECS: f64 = 60.0;

/// The signs of an outage.
#[derive(Debug, Default)]
struct Outage<'f> {
    /// Errors of the log that no successful read followed, apart from those of kinds that no rule is made of.
    errors: Vec<&'f LoggedError>,
    /// A watch that ended and was not seen to begin again.
    cut: Option<&'f LoggedError>,
    /// The age of the latest of both in seconds; `None` if their times are unknown.
    age: Option<f64>,
    /// The newest change that kube-proxy did not follow.
    unheard: Option<(String, Option<Timestamp>)>,
    /// kube-proxy has never written its rules.
    never_wrote: bool,
    /// None of its reads has ever succeeded.
    refused: Option<Reads>,
    /// kube-proxy queued an update after the last error: it has received something since.
    heard_since: bool,
}

/// Whether the outage lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lasts {
    Proven,
    /// Errors go on until the log was read.
    Probable,
    Possible,
    /// The last error is older than the next attempt would be.
    Over,
}

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let outage = Outage::of(facts);
    let cause = outage.cause();
    let (Some(lasts), Some(cause)) = (outage.lasts(facts), cause) else { return };
    findings.push(outage.finding(facts, lasts, &cause));
}

fn is_current(error: &LoggedError) -> bool {
    !error.before_restart && !error.recovered
}

/// The errors of its reads that no successful read followed.
fn current_errors(facts: &Facts) -> impl Iterator<Item = &LoggedError> {
    let errors = facts.node.log.iter().flat_map(|log| &log.errors);
    errors.filter(|error| error.trouble.is_api()).filter(|error| is_current(error))
}

/// Kinds that kube-proxy cannot read and that concern no rule. After the checks that take C2 for a lost API.
pub(super) fn other_kinds(facts: &Facts, findings: &mut Vec<Finding>) {
    findings.extend(current_errors(facts).filter_map(|error| beside_rules(facts, error)));
}

/// The kinds that this error is about, if no rule is made of them, and the rules were written without them.
fn kinds_beside_rules<'e>(facts: &Facts, error: &'e LoggedError) -> Option<&'e BTreeSet<String>> {
    error.kinds_beside_rules().filter(|_| !facts.never_wrote())
}

/// kube-proxy cannot read kinds that no rule of a Service is made of.
fn beside_rules(facts: &Facts, error: &LoggedError) -> Option<Finding> {
    let kinds = kinds_beside_rules(facts, error)?;
    let age = clock(facts).and_then(|clock| clock.since(&error.last));
    if age.is_some_and(|age| age > REPEATS_SECS) {
        return None;
    }
    let names: Vec<&str> = kinds.iter().map(|kind| kind.rsplit('.').next().unwrap_or(kind)).collect();
    let effect = match *names {
        ["Node"] => {
            "it does not see changes of its Node's labels and addresses, such as the zone for topology hints"
        }
        ["ServiceCIDR"] => "in nftables mode connections to ClusterIPs of no Service are not refused",
        _ => "what depends on these kinds stays as it was",
    };
    let detail = format!(
        "kube-proxy cannot read {} objects: {}; the rules of Services follow the API, but {effect}",
        list(&names),
        error.trouble
    );
    let finding = Finding::new(Class::C2, detail)
        .level(Level::Warning)
        .severity(Severity::Low)
        .confidence(Confidence::Medium)
        .unobserved("a change of these objects that kube-proxy did not follow");
    let finding = logged_by(facts, finding, error);
    Some(match cure(error.trouble) {
        Some(action) => finding.now(&[action]),
        None => finding,
    })
}

impl<'f> Outage<'f> {
    fn of(facts: &'f Facts) -> Self {
        let errors = current_errors(facts).filter(|error| kinds_beside_rules(facts, error).is_none());
        let errors: Vec<&LoggedError> = errors.collect();
        let log = facts.node.log.as_ref();
        let cut = log.and_then(|log| log.of(Trouble::WatchCut)).filter(|error| is_current(error));
        let age = clock(facts).and_then(|clock| {
            errors.iter().copied().chain(cut).filter_map(|error| clock.since(&error.last)).reduce(f64::min)
        });
        let queued = facts.sync_times().iter().map(|times| times.last_queued).fold(0.0, f64::max);
        let refused = facts.node.metrics.as_ref().and_then(Metrics::reads);
        Self {
            heard_since: age.zip(facts.now()).is_some_and(|(age, now)| queued > now - age + 1.0),
            errors,
            cut,
            age,
            unheard: unheard(facts, queued),
            never_wrote: facts.never_wrote(),
            refused: refused.filter(|reads| reads.succeeded == 0.0 && !reads.failed.is_empty()),
        }
    }

    /// The most frequent error, or else the status of its requests.
    fn trouble(&self) -> Option<Trouble> {
        let logged = self.errors.iter().max_by_key(|error| error.count).map(|error| error.trouble);
        logged.or_else(|| by_code(self.refused.as_ref()?))
    }

    /// The cause in words.
    fn cause(&self) -> Option<String> {
        let counted = || self.refused.as_ref().map(|_| "none of its requests succeeded".to_owned());
        let missed = || self.unheard.as_ref().map(|_| "it has not received changes of the API".to_owned());
        self.trouble().map(|trouble| trouble.to_string()).or_else(counted).or_else(missed)
    }

    fn lasts(&self, facts: &Facts) -> Option<Lasts> {
        let logged = !self.errors.is_empty();
        let broken = logged || self.cut.is_some();
        if self.never_wrote && (logged || self.refused.is_some())
            || self.refused.is_some()
            || self.unheard.is_some() && broken && !self.heard_since
        {
            return Some(Lasts::Proven);
        }
        if logged && self.goes_on(facts) {
            return Some(Lasts::Probable);
        }
        if self.unheard.is_some() {
            return Some(Lasts::Possible);
        }
        if !logged {
            return None;
        }
        match self.age {
            Some(age) if age > REPEATS_SECS && self.heard_since => None,
            Some(age) if age > REPEATS_SECS => Some(Lasts::Over),
            _ => Some(Lasts::Possible),
        }
    }

    /// Whether the same error was repeated for longer than a blip takes, until the log was read.
    fn goes_on(&self, facts: &Facts) -> bool {
        let Some(clock) = clock(facts) else { return false };
        self.errors.iter().any(|error| {
            let ages = clock.since(&error.first).zip(clock.since(&error.last));
            ages.is_some_and(|(first, last)| last <= REPEATS_SECS && first - last >= BLIP_SECS)
        })
    }

    fn finding(&self, facts: &Facts, lasts: Lasts, cause: &str) -> Finding {
        let frozen =
            if self.never_wrote { "it has never written its rules" } else { "its rules no longer change" };
        let detail = match lasts {
            Lasts::Proven | Lasts::Probable => format!("kube-proxy has lost the API: {cause}; {frozen}"),
            Lasts::Possible => format!("kube-proxy may have lost the API: {cause}"),
            Lasts::Over => format!("kube-proxy could not read the API before: {cause}"),
        };
        let (level, severity, confidence) = match lasts {
            Lasts::Proven if self.never_wrote => (Level::Fault, Severity::Critical, Confidence::High),
            Lasts::Proven => (Level::Fault, Severity::High, Confidence::High),
            Lasts::Probable => (Level::Fault, Severity::High, Confidence::Medium),
            Lasts::Possible => (Level::Warning, Severity::Medium, Confidence::Medium),
            Lasts::Over => (Level::Note, Severity::Low, Confidence::Low),
        };
        let mut finding =
            Finding::new(Class::C2, detail).level(level).severity(severity).confidence(confidence);
        for error in self.errors.iter().copied().chain(self.cut) {
            finding = logged_by(facts, finding, error);
        }
        if let Some((content, since)) = &self.unheard {
            finding = finding.api(*since, content.clone()).since(*since);
        }
        if self.never_wrote {
            finding = finding.node(
                None,
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds is 0: it has never written its rules",
            );
        }
        if let Some(reads) = &self.refused {
            let counts: Vec<String> =
                reads.failed.iter().map(|(code, count)| format!("{count:.0} with {code}")).collect();
            finding = finding
                .node(None, format!("rest_client_requests_total: no GET succeeded, {}", counts.join(", ")));
        }
        finding = self.doubts(facts, lasts, finding);
        match self.trouble().and_then(cure) {
            Some(action) => finding.now(&[action]),
            None => finding,
        }
    }

    /// The evidence against it, and the missing fact that would decide.
    fn doubts(&self, facts: &Facts, lasts: Lasts, mut finding: Finding) -> Finding {
        if lasts == Lasts::Probable {
            finding = finding.unobserved("a change of the API that kube-proxy did not follow");
        }
        if matches!(lasts, Lasts::Possible) && self.unheard.is_some() {
            finding = finding.against(
                EvidenceType::Api,
                None,
                "a change of an EndpointSlice that changes no rule causes no write either",
            );
        }
        if matches!(lasts, Lasts::Possible | Lasts::Over) && !self.errors.is_empty() {
            let quiet = self.age.map_or("the time of the last error is unknown".to_owned(), |age| {
                let age = std::time::Duration::try_from_secs_f64(age).unwrap_or_default();
                format!("the last error is {} old", length(age))
            });
            let shows = facts.node.log.as_ref().is_some_and(|log| log.shows_lists);
            let recovery = if shows { "" } else { "; with this verbosity the log does not show a recovery" };
            finding = finding.against(EvidenceType::Node, None, format!("{quiet}{recovery}")).unobserved(
                "whether kube-proxy follows the API now: change a Service and read \
                 kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds again",
            );
        }
        if facts.node.healthz.as_ref().is_some_and(crate::node::Health::is_healthy) {
            finding = finding.against(
                EvidenceType::Node,
                None,
                "/healthz answers 200; it also does so when the API is lost",
            );
        }
        finding
    }
}

pub(super) fn clock(facts: &Facts) -> Option<Clock> {
    Some(Clock { now: facts.now()?, utc_offset: facts.node.proxy_utc_offset })
}

/// The cause, if every failed request has the same status.
fn by_code(reads: &Reads) -> Option<Trouble> {
    let mut codes = reads.failed.keys();
    match (codes.next()?.as_str(), codes.next()) {
        ("401", None) => Some(Trouble::ApiUnauthorized),
        ("403", None) => Some(Trouble::ApiForbidden),
        ("404", None) => Some(Trouble::ApiVersion),
        ("<error>", None) => Some(Trouble::ApiRefused),
        _ => None,
    }
}

/// The action, if the cause is known.
const fn cure(trouble: Trouble) -> Option<Action> {
    match trouble {
        Trouble::ApiUnauthorized => Some(action::CHECK_CREDENTIALS),
        Trouble::ApiForbidden => Some(action::CHECK_ROLE),
        Trouble::ApiVersion => Some(action::COMPARE_VERSIONS),
        Trouble::ApiCertificate => Some(action::COMPARE_CA),
        _ => None,
    }
}

/// The newest change of a Service's slices, with its time, if kube-proxy has not queued an update since.
fn unheard(facts: &Facts, queued: f64) -> Option<(String, Option<Timestamp>)> {
    let history = facts.services()?;
    let now = facts.now()?;
    let proxied = history
        .services()
        .filter(|service| !service.headless && facts.serves(service) && !service.cluster_ips.is_empty());
    let changed = proxied
        .filter_map(|service| Some((history.endpoints_changed(&service.key, Timestamp::MAX)?, service)));
    let (at, service) = changed.max_by_key(|(at, _)| *at)?;
    let at_secs = at.as_unix_secs_f64();
    let unheard = queued > 0.0 && at_secs > queued + LATER_SECS && now - at_secs >= UNHEARD_SECS;
    let content = format!(
        "the EndpointSlices of {} changed {:.0} s after kube-proxy last had something to \
         write, and {:.0} s before it was asked",
        service.key,
        at_secs - queued,
        now - at_secs
    );
    unheard.then_some((content, Some(at)))
}
