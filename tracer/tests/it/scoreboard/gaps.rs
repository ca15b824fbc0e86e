//! Each constructed flow without any one of its events, where the trace knows that it lost one: no fault is made of
//! health, and another fault than the cause is never certain.

use viptrace::class::{Class, Confidence, Kind};

use super::traces;

/// The classes found instead of a case's own, by cases for which `concerns` holds: the class, and text about the case.
fn instead(concerns: impl Fn(Class) -> bool) -> Vec<(Class, Confidence, String)> {
    let mut wrong = Vec::new();
    for group in traces() {
        for case in group.cases.iter().filter(|case| concerns(case.class)) {
            for mode in case.modes {
                for (missing, found) in case.build(*mode).found_with_a_gap() {
                    let others = found.into_iter().filter(|(class, _)| *class != case.class);
                    wrong.extend(others.map(|(class, confidence)| {
                        let case = format!("{} {}: {} ({mode})", case.class, group.symptom, case.name);
                        (class, confidence, format!("{case}, without {missing}: {class}"))
                    }));
                }
            }
        }
    }
    assert!(!wrong.is_empty(), "nothing was lost");
    wrong
}

#[test]
fn a_lost_event_makes_no_fault() {
    let healthy = |class: Class| matches!(class.kind(), Kind::Normal | Kind::Ok);
    let faults = instead(healthy).into_iter().filter(|(class, ..)| class.is_fault());
    let faults: Vec<String> = faults.map(|(.., case)| case).collect();
    assert_eq!(faults, [""; 0]);
}

#[test]
fn another_fault_than_the_cause_is_never_certain() {
    let certain = instead(Class::is_fault)
        .into_iter()
        .filter(|(class, confidence, _)| class.is_fault() && *confidence == Confidence::High);
    let certain: Vec<String> = certain.map(|(.., case)| case).collect();
    assert_eq!(certain, [""; 0]);
}
