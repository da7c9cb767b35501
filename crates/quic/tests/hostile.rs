//! Peers that break the rules: they lose their connection, and no other peer loses anything.

mod common;

use bytes::Bytes;
use common::{Desk, PROTOCOL, Stranger, identity, loopback, pair};
use quic::{Listener, QuicDialer};
use quinn::{Connection, ConnectionError, VarInt};
use roam_proto::channel::{Channel, Class, Dialer, Lost, MESSAGE_LEN_MAX};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The first byte of a request for contents.
const DEMAND: u8 = 2;

async fn connect(to: SocketAddr) -> Connection {
    Stranger::new().connect(to, PROTOCOL).await.unwrap()
}

/// Returns the code with which the home closed a connection.
async fn closed_with(connection: &Connection) -> u64 {
    match connection.closed().await {
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        other => panic!("{other}"),
    }
}

/// Sends bytes as a whole request, and returns the answer.
async fn send(connection: &Connection, bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut to, mut from) = connection.open_bi().await.ok()?;
    to.write_all(bytes).await.ok()?;
    to.finish().ok()?;
    from.read_to_end(MESSAGE_LEN_MAX).await.ok()
}

async fn still_serves(desk: &Desk, channel: &Arc<dyn Channel>) {
    assert_eq!(channel.ask(Class::Demand, "hello".into()).await, Ok("hello".into()));
    assert!(desk.requests().iter().all(|request| !request.starts_with(b"rubbish")));
}

#[tokio::test]
async fn what_is_no_request_ends_the_connection() {
    let (desk, listener, channel) = pair().await;
    for (bytes, code) in [
        (&b""[..], 2),
        (&[4][..], 2),
        (&b"rubbish"[..], 2),
        (&b"\x02nothing"[..], 2),
        (&vec![DEMAND; MESSAGE_LEN_MAX + 2][..], 3),
        (&b"\x02panic"[..], 7),
        (&b"\x02too long"[..], 7),
    ] {
        let connection = connect(listener.local_addr()).await;
        assert_eq!(send(&connection, bytes).await, None);
        assert_eq!(closed_with(&connection).await, code, "{:?}", &bytes[..bytes.len().min(10)]);
    }
    still_serves(&desk, &channel).await;
    drop(channel);
    desk.until(|seen| seen.ended == seen.peers.len()).await;
}

#[tokio::test]
async fn a_datagram_that_is_no_question_ends_the_connection() {
    let (desk, listener, channel) = pair().await;
    for bytes in [&b""[..], &b"rubbish"[..], &[0xff; 20][..], &[0xff; 200][..]] {
        let connection = connect(listener.local_addr()).await;
        connection.send_datagram(bytes.to_vec().into()).unwrap();
        assert_eq!(closed_with(&connection).await, 2, "{bytes:?}");
    }
    still_serves(&desk, &channel).await;
}

#[tokio::test]
async fn a_home_that_answers_with_rubbish_how_much_it_has_pushed_is_left() {
    // Bytes that are no answer, and an answer to a question that was never asked.
    for bytes in [&b"rubbish"[..], &[9, 9][..]] {
        let channel = home_that(move |connection| async move {
            let _ = connection.send_datagram(bytes.into());
        });
        loses(channel.await).await;
    }
}

#[tokio::test]
async fn a_request_that_breaks_off_is_none() {
    let (desk, listener, channel) = pair().await;
    let connection = connect(listener.local_addr()).await;
    for i in 0..500 {
        let (mut to, from) = connection.open_bi().await.unwrap();
        to.write_all(b"\x02rubbish").await.unwrap();
        match i % 3 {
            0 => to.reset(VarInt::from_u32(9)).unwrap(),
            1 => {
                drop(from);
                to.reset(VarInt::from_u32(9)).unwrap();
            }
            _ => {
                to.write_all(&[1; 5000]).await.unwrap();
                to.reset(VarInt::from_u32(9)).unwrap();
            }
        }
    }
    assert_eq!(send(&connection, b"\x02whole").await.as_deref(), Some(&b"whole"[..]));
    let (mut to, _from) = connection.open_bi().await.unwrap();
    to.write_all(b"\x02rubbish").await.unwrap();
    connection.close(VarInt::from_u32(9), b"");
    desk.until(|seen| seen.ended == 1).await;
    still_serves(&desk, &channel).await;
}

#[tokio::test]
async fn closing_while_an_answer_is_worked_out_does_not_stop_that() {
    let (desk, listener, channel) = pair().await;
    let connection = connect(listener.local_addr()).await;
    let asking = tokio::spawn({
        let connection = connection.clone();
        async move { send(&connection, b"\x02wait").await }
    });
    desk.until(|seen| seen.requests.len() == 1).await;
    connection.close(VarInt::from_u32(9), b"");
    assert_eq!(asking.await.unwrap(), None);
    desk.until(|seen| seen.ended == 1).await;
    assert_eq!(desk.seen.borrow().answered, 0);
    desk.go_on.notify_one();
    desk.until(|seen| seen.answered == 1).await;
    still_serves(&desk, &channel).await;
}

#[tokio::test]
async fn strangers_have_few_requests_and_bytes_under_way() {
    let (desk, listener, channel) = pair().await;
    let connection = connect(listener.local_addr()).await;
    let mut open = Vec::new();
    for _ in 0..8 {
        let (mut to, from) = connection.open_bi().await.unwrap();
        to.write_all(b"\x02rubbish").await.unwrap();
        open.push((to, from));
    }
    // There is no ninth stream until one of these has ended.
    let ninth = connection.open_bi();
    tokio::pin!(ninth);
    tokio::select! {
        biased;
        _ = &mut ninth => panic!("one too many"),
        () = still_serves(&desk, &channel) => {}
    }
    for (mut to, _from) in open {
        to.reset(VarInt::from_u32(9)).unwrap();
    }
    let _ninth = ninth.await.unwrap();
    let own = connection.open_uni();
    tokio::pin!(own);
    tokio::select! {
        biased;
        own = &mut own => panic!("homes take no streams of that kind: {own:?}"),
        () = still_serves(&desk, &channel) => {}
    }
}

#[tokio::test]
async fn those_who_never_read_their_answers_hold_up_nobody() {
    let (desk, listener, channel) = pair().await;
    let connection = connect(listener.local_addr()).await;
    assert!(send(&connection, b"\x02first").await.is_some());
    let mut unread = Vec::new();
    for class in 0..40u8 {
        let (mut to, from) = connection.open_bi().await.unwrap();
        to.write_all(&[class % 4]).await.unwrap();
        to.write_all(b"len 1048576").await.unwrap();
        to.finish().unwrap();
        unread.push(from);
    }
    desk.until(|seen| seen.answered >= 41).await;
    still_serves(&desk, &channel).await;
    connection.close(VarInt::from_u32(9), b"");
    desk.until(|seen| seen.ended == 1).await;
}

#[tokio::test]
async fn a_further_connection_of_a_peer_replaces_its_oldest() {
    let (desk, home, client) = (Desk::new(), identity(), identity());
    let listener = Listener::listen(loopback(), &home, Arc::new(desk.clone())).unwrap();
    let dialer = QuicDialer::new(vec![listener.local_addr().to_string()], home.key(), &client);
    let mut channels = Vec::new();
    for i in 0..5 {
        let channel = dialer.dial().await.unwrap();
        desk.until(|seen| seen.peers.len() == i + 1).await;
        channels.push(channel);
    }
    desk.until(|seen| seen.ended == 1).await;
    assert_eq!(channels[0].ask(Class::Demand, Bytes::new()).await, Err(Lost));
    for channel in &channels[1..] {
        assert_eq!(channel.ask(Class::Demand, "hello".into()).await, Ok("hello".into()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_connections_than_there_is_room_for_are_refused_and_room_comes_back() {
    let (desk, listener, channel) = pair().await;
    let mut dialing = JoinSet::new();
    for _ in 0..300 {
        let to = listener.local_addr();
        dialing.spawn(async move { Stranger::new().connect(to, PROTOCOL).await });
    }
    let made = dialing.join_all().await;
    let refused = made.iter().filter(|made| made.is_err()).count();
    assert!(refused >= 45, "{refused}");
    still_serves(&desk, &channel).await;
    drop(made);
    desk.until(|seen| seen.ended + 1 == seen.peers.len()).await;
    let stranger = connect(listener.local_addr()).await;
    assert_eq!(send(&stranger, b"\x02in").await.as_deref(), Some(&b"in"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_keep_out_nobody_but_other_strangers() {
    let (desk, listener, channel) = pair().await;
    let friend = Stranger::new();
    desk.until(|seen| seen.peers.len() == 1).await;
    *desk.known.lock() = Some(vec![desk.seen.borrow().peers[0], friend.key]);
    let mut strangers = Vec::new();
    for _ in 0..300 {
        let stranger = connect(listener.local_addr()).await;
        // A peer that gets an answer stays connected.
        assert_eq!(send(&stranger, b"\x02in").await.as_deref(), Some(&b"in"[..]));
        strangers.push(stranger);
    }
    desk.until(|seen| seen.ended >= 250).await;
    assert_eq!(send(strangers.last().unwrap(), b"\x02in").await.as_deref(), Some(&b"in"[..]));
    let friend = friend.connect(listener.local_addr(), PROTOCOL).await.unwrap();
    assert_eq!(send(&friend, b"\x02in").await.as_deref(), Some(&b"in"[..]));
    still_serves(&desk, &channel).await;
}

#[tokio::test]
async fn rubbish_that_is_not_even_quic_is_ignored() {
    let (desk, listener, channel) = pair().await;
    let socket = UdpSocket::bind(loopback()).unwrap();
    let mut bytes = [0u8; 1400];
    for i in 0..2000usize {
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = (((i * 31 + at) * 2_654_435_761) >> 7) as u8;
        }
        // Some datagrams look like a first packet.
        if i % 3 == 0 {
            bytes[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
        }
        socket.send_to(&bytes[..1 + i % 1400], listener.local_addr()).unwrap();
    }
    still_serves(&desk, &channel).await;
    connect(listener.local_addr()).await;
    assert!(Stranger::new().connect(listener.local_addr(), b"h3").await.is_err());
}

/// A home that runs the given code on its client's connection.
async fn home_that<F>(misbehaves: impl FnOnce(Connection) -> F + Send + 'static) -> Arc<dyn Channel>
where
    F: Future<Output = ()> + Send + 'static,
{
    let stranger = Stranger::new();
    let home = stranger.listen(PROTOCOL);
    let address = home.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let connection = home.accept().await.unwrap().await.unwrap();
        misbehaves(connection.clone()).await;
        connection.closed().await;
    });
    QuicDialer::new(vec![address], stranger.key, &identity()).dial().await.unwrap()
}

async fn loses(channel: Arc<dyn Channel>) {
    assert_eq!(channel.ask(Class::Demand, "hello".into()).await, Err(Lost));
    assert_eq!(channel.pushed().await, Err(Lost));
}

#[tokio::test]
async fn a_home_that_answers_too_much_is_left() {
    let too_long = home_that(|connection| async move {
        let (mut to, _from) = connection.accept_bi().await.unwrap();
        let _ = to.write_all(&vec![0; MESSAGE_LEN_MAX + 1]).await;
    });
    loses(too_long.await).await;
}

#[tokio::test]
async fn a_home_that_breaks_off_an_answer_is_left() {
    let broken_off = home_that(|connection| async move {
        let (mut to, _from) = connection.accept_bi().await.unwrap();
        to.write_all(b"half").await.unwrap();
        to.reset(VarInt::from_u32(9)).unwrap();
    });
    loses(broken_off.await).await;
}

#[tokio::test]
async fn a_home_that_pushes_what_is_no_message_is_left() {
    for bytes in [&[0xff; 8][..], &[5, 0, 0, 0, 1][..], &[1, 0][..]] {
        let channel = home_that(move |connection| async move {
            let mut to = connection.open_uni().await.unwrap();
            to.write_all(bytes).await.unwrap();
            to.finish().unwrap();
        });
        let channel = channel.await;
        assert_eq!(channel.pushed().await, Err(Lost), "{bytes:?}");
        loses(channel).await;
    }
}
