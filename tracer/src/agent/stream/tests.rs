use tokio::{io::duplex, time::Instant};

use super::{frame::read, *};
use crate::agent::hub::Hub;

/// The kinds of the frames that a reader receives, with the seconds since its connection.
async fn received(
    from: &mut (impl AsyncRead + Unpin),
    frames: usize,
    began: Instant,
) -> Vec<(FrameKind, u64)> {
    let mut received = Vec::new();
    for _ in 0..frames {
        let (kind, _) = read(from).await.unwrap().unwrap();
        received.push((kind, began.elapsed().as_secs()));
    }
    received
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_wants_a_heartbeat_gets_one_after_each_interval_without_a_record() {
    let hub = Arc::new(Hub::default());
    let subscription = hub.subscribe(4);
    let (mut reader, agent) = duplex(1 << 10);
    let serving = tokio::spawn(async move {
        let (read, write) = tokio::io::split(agent);
        verdicts(&mut Out(write), read, subscription, Some(HEARTBEAT)).await
    });
    let began = Instant::now();
    let beat = FrameKind::Heartbeat;
    assert_eq!(received(&mut reader, 2, began).await, [(beat, 10), (beat, 20)]);
    sleep(Duration::from_secs(7)).await;
    hub.publish("{}", false);
    let expected = [(FrameKind::Record, 27), (beat, 37), (beat, 47)];
    assert_eq!(received(&mut reader, 3, began).await, expected);
    hub.close();
    assert!(serving.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_reader_without_a_heartbeat_gets_records_only() {
    let hub = Arc::new(Hub::default());
    let subscription = hub.subscribe(4);
    let (mut reader, agent) = duplex(1 << 10);
    let serving = tokio::spawn(async move {
        let (read, write) = tokio::io::split(agent);
        verdicts(&mut Out(write), read, subscription, None).await
    });
    let began = Instant::now();
    sleep(HEARTBEAT * 10).await;
    hub.publish("{}", false);
    assert_eq!(received(&mut reader, 1, began).await, [(FrameKind::Record, 100)]);
    drop(reader);
    assert_eq!(serving.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

/// A newer reader's request, as an older agent reads it, and the request of an older reader.
#[test]
fn a_request_with_unknown_fields_is_one_without_them() {
    let newer = Wanted::parse(br#"{"viptrace":1,"want":"verdicts","unknown":true}"#).unwrap();
    assert_eq!(newer.want, Want::Verdicts { heartbeat: false });
    let older = serde_json::to_string(&newer).unwrap();
    assert_eq!(older, r#"{"viptrace":1,"want":"verdicts"}"#);
    let line = r#"{"viptrace":1,"want":"verdicts","heartbeat":true}"#;
    let wanted = Wanted::parse(line.as_bytes()).unwrap();
    assert_eq!(wanted.want, Want::Verdicts { heartbeat: true });
    assert_eq!(serde_json::to_string(&wanted).unwrap(), line);
}
