use super::*;
use crate::verdict::fixture;

const SECOND: Duration = Duration::from_secs(1);

/// An agent that is read, and the time.
struct Lab {
    reading: Reading,
    start: Instant,
    passed: Duration,
}

impl Lab {
    fn new() -> Self {
        let mut lab = Self { reading: Reading::new(), start: Instant::now(), passed: Duration::ZERO };
        lab.opened();
        lab
    }

    fn at(&self) -> Instant {
        self.start + self.passed
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_unix_secs(1_800_000_000).saturating_add(self.passed)
    }

    fn opened(&mut self) {
        let (now, at) = (self.now(), self.at());
        self.reading.opened(now, at);
    }

    fn lost(&mut self) -> Option<String> {
        self.lost_by(VisitError::Broken { pod: "agent-x".to_owned(), why: String::new() })
    }

    fn lost_by(&mut self, why: VisitError) -> Option<String> {
        let (now, at) = (self.now(), self.at());
        self.reading.lost(why, now, at)
    }

    /// The line for the user, if the verdict is shown.
    fn take(&mut self, port: u16, earlier: bool) -> (bool, Option<String>) {
        let mut verdict = fixture::fault();
        verdict.flow.client.set_port(port);
        let now = self.now();
        self.reading.take(&Handed { earlier, verdict: Box::new(verdict) }, now)
    }

    /// The step that is due, at the time when it is.
    fn next(&mut self, has_pod: bool) -> Turn {
        let due = self.reading.deadline().unwrap();
        self.passed = due.duration_since(self.start).max(self.passed);
        let at = self.at();
        self.reading.turn(has_pod, at)
    }
}

#[test]
fn an_interruption_is_reported_with_its_times_and_nothing_is_shown_twice() {
    let mut lab = Lab::new();
    assert_eq!(lab.take(1, true), (false, None), "from before the trace");
    assert_eq!(lab.take(2, false), (true, None));
    lab.passed = 10 * SECOND;
    let said = lab.lost().unwrap();
    assert!(said.contains("ended without a result; its agent is tried again for up to 5 min"), "{said}");
    assert!(matches!(lab.next(true), Turn::Connect));
    lab.passed += SECOND;
    assert_eq!(lab.lost(), None, "only the first failure is news");
    assert!(matches!(lab.next(true), Turn::Connect));
    lab.opened();
    let (is_new, said) = lab.take(1, true);
    let span = "from 2027-01-15T08:00:10.000Z to 2027-01-15T08:00:14.000Z (4.0 s)";
    assert_eq!((is_new, said), (false, Some(format!("its agent is read again; it was not {span}"))));
    assert_eq!(lab.take(2, true), (false, None), "it was shown before");
    assert_eq!(lab.take(3, true), (true, None), "of the time in which the agent was not read");
    assert_eq!(lab.take(4, false), (true, None));
    assert_eq!((lab.reading.earlier(), lab.reading.is_whole()), (1, false));
    let expected = format!(
        "its agent was not read {span}: 1 failed flow of that time came later; other flows may be missing"
    );
    assert_eq!(lab.reading.gaps(), [expected]);
}

#[test]
fn a_silent_agent_is_read_again_once_the_connection_holds() {
    let mut lab = Lab::new();
    assert!(lab.reading.deadline().is_none() && lab.reading.gaps().is_empty());
    lab.lost();
    assert!(matches!(lab.next(true), Turn::Connect));
    lab.opened();
    // `viptrace agent stream` runs, but the agent has no socket yet.
    lab.passed += SECOND;
    assert_eq!(lab.lost(), None);
    assert!(lab.reading.gaps()[0].contains("to the end"), "{:?}", lab.reading.gaps());
    assert!(matches!(lab.next(true), Turn::Connect));
    lab.opened();
    assert!(matches!(lab.next(true), Turn::ReadAgain(text) if text.ends_with("(4.0 s)")));
    assert!(lab.reading.deadline().is_none());
    assert_eq!(lab.reading.gaps().len(), 1);
}

#[test]
fn a_connection_that_fell_silent_was_not_read_since_its_last_line() {
    let mut lab = Lab::new();
    lab.passed = 45 * SECOND;
    let said = lab.lost_by(VisitError::Silent { pod: "agent-x".to_owned(), silence: 30 * SECOND }).unwrap();
    assert!(said.starts_with(
        "the connection to the Pod agent-x was lost: it has been silent for 30 s; its agent is tried"
    ));
    assert!(matches!(lab.next(true), Turn::Connect));
    lab.opened();
    let Turn::ReadAgain(said) = lab.next(true) else { panic!("the connection holds") };
    assert!(
        said.ends_with("it was not from 2027-01-15T08:00:15.000Z to 2027-01-15T08:00:46.000Z (31.0 s)"),
        "{said}"
    );
    // The next interruption begins after this one, also if the connection was silent from the beginning.
    lab.passed = 60 * SECOND;
    lab.lost_by(VisitError::Silent { pod: "agent-x".to_owned(), silence: 30 * SECOND });
    assert!(
        lab.reading.gaps()[1].contains("from 2027-01-15T08:00:46.000Z to the end"),
        "{:?}",
        lab.reading.gaps()
    );
}

#[test]
fn the_attempts_have_pauses_and_an_end() {
    for (has_pod, why) in [(true, "ended without a result"), (false, "its Pod is gone, and no other came")] {
        let mut lab = Lab::new();
        lab.lost();
        let mut attempts = 0;
        let error = loop {
            match lab.next(has_pod) {
                Turn::Connect => assert_eq!((has_pod, lab.lost()), (true, None)),
                Turn::Nothing => assert!(!has_pod),
                Turn::GiveUp(error) => break error.to_string(),
                Turn::ReadAgain(text) => panic!("{text}"),
            }
            attempts += 1;
        };
        assert!((PATIENCE..PATIENCE + MAX_PAUSE).contains(&lab.passed), "{:?}", lab.passed);
        assert!(attempts < 30, "{attempts}");
        assert!(error.contains("could not be read for 5 min 0 s: ") && error.contains(why), "{error}");
    }
}

/// The agent of another version takes the connection, and its records cannot be read.
#[test]
fn connections_that_bring_something_and_end_at_once_have_an_end_too() {
    let mut lab = Lab::new();
    lab.lost();
    for port in 1..100 {
        match lab.next(true) {
            Turn::Connect => {}
            Turn::GiveUp(_) => {
                assert!(port > 5);
                assert_eq!(lab.reading.gaps().len(), MAX_LISTED + 1);
                assert!(lab.reading.gaps()[MAX_LISTED].contains("more interruptions"));
                return;
            }
            other => panic!("{other:?}"),
        }
        lab.opened();
        lab.take(port, false);
        assert!(lab.lost().is_some());
    }
    panic!("it goes on");
}

#[test]
fn a_steady_connection_makes_the_patience_new() {
    let mut lab = Lab::new();
    for _ in 0..10 {
        lab.lost();
        assert!(matches!(lab.next(true), Turn::Connect));
        lab.opened();
        assert!(matches!(lab.next(true), Turn::ReadAgain(_)));
        lab.passed += STEADY;
    }
    assert!(lab.passed > PATIENCE);
}

/// A connection that died less than three intervals before the end was not found yet, and an agent that is alive is not late.
#[test]
fn an_overdue_heartbeat_at_the_end_is_a_time_in_which_the_agent_was_not_read() {
    for (silent, is_whole) in [(14, true), (16, false), (29, false)] {
        let mut lab = Lab::new();
        lab.passed = 20 * SECOND;
        let now = lab.now();
        lab.reading.alive(now, 10 * SECOND);
        lab.passed += silent * SECOND;
        let now = lab.now();
        lab.reading.ended(now);
        assert_eq!(lab.reading.is_whole(), is_whole, "{silent} s");
        if !is_whole {
            let said =
                "its agent was not read from 2027-01-15T08:00:20.000Z to the end: other flows may be missing";
            assert_eq!(lab.reading.gaps(), [said]);
        }
    }
    // A verdict is a line too.
    let mut lab = Lab::new();
    let now = lab.now();
    lab.reading.alive(now, 10 * SECOND);
    lab.passed = 14 * SECOND;
    assert_eq!(lab.take(1, false), (true, None));
    lab.passed = 28 * SECOND;
    let now = lab.now();
    lab.reading.ended(now);
    assert!(lab.reading.is_whole());
    // An older agent has no heartbeat.
    let mut lab = Lab::new();
    lab.passed = 1000 * SECOND;
    let now = lab.now();
    lab.reading.ended(now);
    assert!(lab.reading.is_whole());
    // An interruption is listed once.
    lab.reading.alive(now, 10 * SECOND);
    lab.lost();
    lab.passed += 100 * SECOND;
    let now = lab.now();
    lab.reading.ended(now);
    assert_eq!(lab.reading.gaps().len(), 1);
}
