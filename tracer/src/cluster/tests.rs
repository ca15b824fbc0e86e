//! How long the first lists may take.

use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, interval},
};

use super::{trim::trim, *};

const LIMIT: Duration = Duration::from_mins(1);
/// The time between two objects, and the number of objects: together longer than the limit.
const STEP: Duration = Duration::from_secs(50);
const OBJECTS: u32 = 7;

/// Waits for the lists of a server that sends one Pod after the other, and then completes every list. Time passes at once
/// while everybody waits. Returns how much passed, too.
fn sync(name: impl Fn(u32) -> String + Send + 'static) -> (Result<Cluster, SyncError>, Duration) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async move {
        let (sender, updates) = mpsc::channel(64);
        let limits = Limits { sync: LIMIT, ..Limits::default() };
        let mut feed = Feed(Some(watch::Watcher::of("http://lab", limits, updates)));
        let at = Timestamp::from_unix_secs(1_796_083_200);
        let server = async move {
            let mut clock = interval(STEP);
            for number in 0..OBJECTS {
                clock.tick().await;
                let pod = json!({"metadata": {"name": name(number), "namespace": "shop"}});
                let listed = Event::Listed(trim(Kind::Pod, &pod, &mut Vec::new()).unwrap());
                // The receiver has given up.
                let _ = sender.send(Update { kind: Kind::Pod, received: at, event: listed }).await;
            }
            for kind in Kind::ALL {
                let _ = sender.send(Update { kind, received: at, event: Event::Synced }).await;
            }
            pending::<()>().await;
        };
        let status = Status::new(Origin::ApiServer("http://lab".to_owned()));
        let mut cluster = Cluster { history: History::new(LOOK_BACK), status };
        let began = Instant::now();
        tokio::select! {
            result = cluster.sync(&mut feed) => (result.map(|()| cluster), began.elapsed()),
            () = server => unreachable!("the server waits for ever"),
        }
    })
}

#[test]
fn lists_may_take_long_while_objects_arrive() {
    let (cluster, took) = sync(|number| format!("cart-{number}"));
    assert_eq!(cluster.unwrap().history.counts().objects, OBJECTS as usize);
    assert!(took > LIMIT, "{took:?}");
}

#[test]
fn a_list_that_is_only_repeated_ends_the_wait() {
    let (result, took) = sync(|_| "cart-0".to_owned());
    let error = result.unwrap_err();
    assert!((LIMIT..LIMIT + STEP).contains(&took), "{took:?}");
    assert_eq!(error.limit, Some(LIMIT));
    assert!(
        error.to_string().starts_with("the API server http://lab listed no further object for 60 s: "),
        "{error}"
    );
}
