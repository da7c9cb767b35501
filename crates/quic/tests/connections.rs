//! Connections between a home and clients that both keep the rules.

mod common;

use bytes::Bytes;
use common::{Desk, Stranger, dialer, failed, identity, loopback, numbers, pair};
use quic::{Listener, QuicDialer};
use roam_proto::channel::{Channel, Class, DialError, Dialer, Lost, MESSAGE_LEN_MAX};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

const CLASSES: [Class; 4] = [Class::Interactive, Class::Demand, Class::Prefetch, Class::Replay];

/// Polls a future once, and drops it.
async fn begin_and_drop<T>(mut future: types::BoxFuture<T>) {
    poll_fn(|context| {
        let _ = future.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn requests_of_all_lengths_are_answered() {
    let (desk, listener, channel) = pair().await;
    for len in [0, 1, 4095, 4096, 100_000, MESSAGE_LEN_MAX] {
        for class in CLASSES {
            assert_eq!(channel.ask(class, numbers(len)).await, Ok(numbers(len)), "{len} {class:?}");
        }
    }
    assert_eq!(channel.ask(Class::Demand, format!("len {MESSAGE_LEN_MAX}").into()).await, Ok(numbers(MESSAGE_LEN_MAX)));
    let path = channel.path();
    assert!(path.sent as usize > 4 * MESSAGE_LEN_MAX && path.received as usize > 5 * MESSAGE_LEN_MAX, "{path:?}");
    assert!(path.window > 0 && !path.round_trip.is_zero(), "{path:?}");
    drop(channel);
    desk.until(|seen| seen.ended == 1).await;
    listener.close().await;
}

#[tokio::test]
async fn the_home_knows_who_it_is_whether_or_not_he_was_there_before() {
    let (desk, home, client) = (Desk::new(), identity(), identity());
    let listener = Listener::listen(loopback(), &home, Arc::new(desk.clone())).unwrap();
    let dialer = QuicDialer::new(vec![listener.local_addr().to_string()], home.key(), &client);
    for _ in 0..3 {
        let channel = dialer.dial().await.unwrap();
        channel.ask(Class::Interactive, Bytes::new()).await.unwrap();
    }
    assert_eq!(desk.seen.borrow().peers, [client.key(); 3]);
    desk.until(|seen| seen.ended == 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_requests_at_once_are_all_answered() {
    let (desk, _listener, channel) = pair().await;
    let mut asked = JoinSet::new();
    for i in 0..1000usize {
        let len = if i % 50 == 0 { 500_000 } else { i };
        let answer = channel.ask(CLASSES[i % 4], numbers(len));
        asked.spawn(async move { (len, answer.await) });
    }
    while let Some(answered) = asked.join_next().await {
        let (len, answer) = answered.unwrap();
        assert_eq!(answer, Ok(numbers(len)));
    }
    assert_eq!(desk.seen.borrow().answered, 1000);
}

#[tokio::test]
async fn an_answer_may_overtake_another() {
    let (desk, _listener, channel) = pair().await;
    let slow = tokio::spawn(channel.ask(Class::Interactive, "wait".into()));
    desk.until(|seen| seen.requests.len() == 1).await;
    assert_eq!(channel.ask(Class::Replay, "fast".into()).await, Ok("fast".into()));
    desk.go_on.notify_one();
    assert_eq!(slow.await.unwrap(), Ok("wait".into()));
}

#[tokio::test]
async fn prefetches_that_wait_leave_room_for_whoever_waits() {
    let (desk, _listener, channel) = pair().await;
    channel.ask(Class::Interactive, "first".into()).await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..1000 {
        waiting.spawn(channel.ask(Class::Prefetch, "wait".into()));
    }
    desk.until(|seen| seen.requests.len() > 100).await;
    for class in [Class::Interactive, Class::Demand] {
        assert_eq!(channel.ask(class, "now".into()).await, Ok("now".into()));
    }
}

#[tokio::test]
async fn what_nobody_waits_for_any_more_is_given_up_and_never_arrives_in_part() {
    let (desk, _listener, channel) = pair().await;
    for _ in 0..600 {
        begin_and_drop(channel.ask(Class::Demand, numbers(MESSAGE_LEN_MAX))).await;
        begin_and_drop(channel.ask(Class::Replay, numbers(20_000))).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(channel.ask(Class::Interactive, "last".into()).await, Ok("last".into()));
    let whole = [MESSAGE_LEN_MAX, 20_000, 4];
    assert!(desk.requests().iter().all(|request| whole.contains(&request.len())));
}

#[tokio::test]
async fn what_is_pushed_arrives_in_order_even_if_waits_for_it_are_given_up() {
    let (desk, _listener, channel) = pair().await;
    desk.until(|seen| seen.peers.len() == 1).await;
    let push = desk.pushes.lock()[0].clone();
    let len_of = |i: usize| if i.is_multiple_of(100) { 200_000 } else { i };
    begin_and_drop(channel.pushed()).await;
    for i in 0..1000 {
        push.push(numbers(len_of(i))).unwrap();
    }
    for i in 0..1000 {
        assert_eq!(channel.pushed().await, Ok(numbers(len_of(i))), "{i}");
    }
    channel.close();
    assert_eq!(channel.pushed().await, Err(Lost));
    desk.until(|seen| seen.ended == 1).await;
    assert_eq!(push.push("late".into()), Err(Lost));
}

#[tokio::test]
async fn a_client_has_caught_up_when_all_that_was_pushed_was_taken() {
    let (desk, listener, channel) = pair().await;
    channel.caught_up().await.unwrap();
    let push = desk.pushes.lock()[0].clone();
    (1..4).for_each(|len| push.push(numbers(len)).unwrap());
    let mut caught_up = tokio::spawn(channel.caught_up());
    for _ in 1..4 {
        assert!(timeout(Duration::from_millis(50), &mut caught_up).await.is_err());
        channel.pushed().await.unwrap();
    }
    assert_eq!(caught_up.await.unwrap(), Ok(()));
    listener.close().await;
    assert_eq!(channel.caught_up().await, Err(Lost));
}

#[tokio::test]
async fn pushing_more_than_there_is_room_for_ends_the_connection() {
    let (desk, _listener, channel) = pair().await;
    desk.until(|seen| seen.peers.len() == 1).await;
    let push = desk.pushes.lock()[0].clone();
    let pushed = (0..1000).take_while(|_| push.push(numbers(MESSAGE_LEN_MAX)).is_ok()).count();
    assert!((1..10).contains(&pushed), "{pushed}");
    while channel.pushed().await.is_ok() {}
    assert_eq!(channel.ask(Class::Interactive, Bytes::new()).await, Err(Lost));
    desk.until(|seen| seen.ended == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_goes_on_from_other_addresses() {
    let (desk, _listener, channel) = pair().await;
    desk.until(|seen| seen.peers.len() == 1).await;
    let push = desk.pushes.lock()[0].clone();
    for round in 0..5 {
        let mut asked = JoinSet::new();
        for _ in 0..8 {
            asked.spawn(channel.ask(Class::Demand, format!("len {MESSAGE_LEN_MAX}").into()));
            asked.spawn(channel.ask(Class::Replay, numbers(MESSAGE_LEN_MAX)));
        }
        desk.until(|seen| seen.requests.len() > 16 * round).await;
        channel.rebind();
        while let Some(answer) = asked.join_next().await {
            assert_eq!(answer.unwrap(), Ok(numbers(MESSAGE_LEN_MAX)));
        }
        push.push(numbers(round)).unwrap();
        assert_eq!(channel.pushed().await, Ok(numbers(round)));
    }
    assert_eq!(desk.seen.borrow().peers.len(), 1);
}

#[tokio::test]
async fn the_home_is_heard_of_at_a_new_address_without_being_asked() {
    let (desk, _listener, channel) = pair().await;
    desk.until(|seen| seen.peers.len() == 1).await;
    let push = desk.pushes.lock()[0].clone();
    // Called by a thread outside of any runtime.
    std::thread::scope(|scope| scope.spawn(|| channel.rebind()).join()).unwrap();
    push.push("news".into()).unwrap();
    assert_eq!(channel.pushed().await, Ok("news".into()));
}

#[tokio::test]
async fn another_key_is_told_from_nobody_being_there() {
    let (desk, home) = (Desk::new(), identity());
    let listener = Listener::listen(loopback(), &home, Arc::new(desk.clone())).unwrap();
    let address = listener.local_addr().to_string();
    let expected = identity().key();
    let error = failed(QuicDialer::new(vec![address.clone()], expected, &identity()).dial().await);
    assert_eq!(error, DialError::WrongKey { address: address.clone() });
    let nobody = "127.0.0.1:0".to_string();
    let error = failed(QuicDialer::new(vec![nobody.clone()], expected, &identity()).dial().await);
    assert!(matches!(&error, DialError::Unreachable(text) if text.contains(&nobody)), "{error}");
    let error = failed(QuicDialer::new(vec!["no port".into()], expected, &identity()).dial().await);
    assert!(matches!(&error, DialError::Unreachable(text) if text.contains("no port")), "{error}");
    assert_eq!(desk.seen.borrow().peers, []);
}

#[tokio::test]
async fn the_address_that_is_the_homes_is_found_among_others() {
    let (desk, home) = (Desk::new(), identity());
    let other = Listener::listen(loopback(), &identity(), Arc::new(Desk::new())).unwrap();
    let listener = Listener::listen(loopback(), &home, Arc::new(desk.clone())).unwrap();
    let addresses = ["127.0.0.1:0".into(), other.local_addr().to_string(), listener.local_addr().to_string()];
    let channel = QuicDialer::new(addresses.into(), home.key(), &identity()).dial().await.unwrap();
    assert_eq!(channel.ask(Class::Demand, "here".into()).await, Ok("here".into()));
}

#[tokio::test]
async fn another_protocol_is_incompatible() {
    let stranger = Stranger::new();
    let home = stranger.listen(b"starling-roam/0");
    let accepting = home.clone();
    tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            drop(incoming.await)
        }
    });
    let address = home.local_addr().unwrap().to_string();
    let error = failed(QuicDialer::new(vec![address.clone()], stranger.key, &identity()).dial().await);
    assert!(matches!(&error, DialError::Incompatible(text) if text.contains(&address)), "{error}");
}

#[tokio::test]
async fn a_home_that_is_closed_ends_its_connections_and_tells_each_session_once() {
    let (desk, listener, channel) = pair().await;
    let waiting = tokio::spawn(channel.ask(Class::Interactive, "wait".into()));
    desk.until(|seen| seen.requests.len() == 1).await;
    desk.go_on.notify_one();
    assert_eq!(waiting.await.unwrap(), Ok("wait".into()));
    let waiting = tokio::spawn(channel.ask(Class::Interactive, "wait".into()));
    desk.until(|seen| seen.requests.len() == 2).await;
    let going_on = desk.go_on.clone();
    tokio::spawn(async move { going_on.notify_one() });
    listener.close().await;
    assert_eq!(desk.seen.borrow().ended, 1);
    // The answer may just have arrived.
    assert!(matches!(waiting.await.unwrap(), Err(Lost) | Ok(_)));
    assert_eq!(channel.ask(Class::Interactive, Bytes::new()).await, Err(Lost));
    assert_eq!(channel.pushed().await, Err(Lost));
}

#[test]
fn a_home_that_crashed_and_is_back_says_that_old_connections_are_gone() {
    let (desk, home) = (Desk::new(), identity());
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listen = |at: &tokio::runtime::Runtime, address| {
        let _inside = at.enter();
        Listener::listen(address, &home, Arc::new(desk.clone())).unwrap()
    };
    let (before, clients) = (runtime(), runtime());
    let listener = listen(&before, loopback());
    let address = listener.local_addr();
    let channel = clients.block_on(dialer(&listener, &home).dial()).unwrap();
    clients.block_on(channel.ask(Class::Demand, "before".into())).unwrap();
    let waiting = clients.spawn(channel.ask(Class::Interactive, "wait".into()));
    clients.block_on(desk.until(|seen| seen.requests.len() == 2));
    // Its tasks stop where they are, and it sends no farewell.
    drop(before);
    drop(listener);

    let after = runtime();
    let listener = listen(&after, address);
    assert_eq!(clients.block_on(channel.ask(Class::Demand, "after".into())), Err(Lost));
    assert_eq!(clients.block_on(waiting).unwrap(), Err(Lost));
    let again: Arc<dyn Channel> = clients.block_on(dialer(&listener, &home).dial()).unwrap();
    assert_eq!(clients.block_on(again.ask(Class::Demand, "again".into())), Ok("again".into()));
    clients.block_on(async { drop(again) });
}
