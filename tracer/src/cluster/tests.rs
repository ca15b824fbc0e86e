//! How long the first lists may take.

use std::time::Instant;

use serde_json::json;
use tokio::{sync::mpsc, time::interval};

use super::{trim::trim, *};

const LIMIT: Duration = Duration::from_secs(1);
/// The time between two objects, and the number of objects: together longer than the limit.
const STEP: Duration = Duration::from_millis(250);
const OBJECTS: u32 = 7;

/// Waits for the lists of a server that sends one Pod after the other, and then completes every list.
fn sync(name: impl Fn(u32) -> String + Send + 'static) -> Result<Cluster, SyncError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
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
        tokio::select! {
            result = cluster.sync(&mut feed) => result.map(|()| cluster),
            () = server => unreachable!("the server waits for ever"),
        }
    })
}

#[test]
fn lists_may_take_long_while_objects_arrive() {
    let began = Instant::now();
    let cluster = sync(|number| format!("cart-{number}")).unwrap();
    assert_eq!(cluster.history.counts().objects, OBJECTS as usize);
    assert!(began.elapsed() > LIMIT, "the lists took longer than the limit");
}

#[test]
fn a_list_that_is_only_repeated_ends_the_wait() {
    let error = sync(|_| "cart-0".to_owned()).unwrap_err();
    assert_eq!(error.limit, Some(LIMIT));
    assert!(
        error.to_string().starts_with("the API server http://lab listed no further object for 1 s: "),
        "{error}"
    );
}
