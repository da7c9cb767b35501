//! How much a home has pushed: asked and answered in datagrams, which are not sent again when they are lost. So each try is a question of its own, as small as
//! can be, and the first that gets there after a silence is answered; on a stream, that question would have to wait until it is known that the first one was
//! lost. Nor does a home that cannot be reached for hours use up the streams that it allows.

use crate::stream::Close;
use quinn::Connection;
use roam_wire::codec::Wire;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// The answer to a question: its number, and how many messages were pushed by then.
pub(crate) type Answer = (u64, u64);

/// Sends question `number`. Without room for it on the way, it is not the first; QUIC's own tries go on, fewer and fewer.
pub(crate) fn ask(connection: &Connection, number: u64) {
    if let Err(error) = connection.send_datagram(number.to_bytes().into()) {
        tracing::debug!(%error, "the home was not asked how much it has pushed");
    }
}

/// Takes in answers until the connection ends; of several, the one to the latest question stays.
pub(crate) async fn hear(connection: Connection, latest: watch::Sender<Answer>) {
    while let Ok(datagram) = connection.read_datagram().await {
        let Ok(answer) = Answer::from_bytes(&datagram) else { return Close::Refused.close(&connection) };
        latest.send_if_modified(|known| {
            let is_newer = known.0 < answer.0;
            if is_newer {
                *known = answer;
            }
            is_newer
        });
    }
}

/// Answers questions until the connection ends.
pub(crate) async fn answer(connection: Connection, pushed: Arc<AtomicU64>) {
    while let Ok(question) = connection.read_datagram().await {
        let Ok(number) = u64::from_bytes(&question) else { return Close::Refused.close(&connection) };
        let answer: Answer = (number, pushed.load(Ordering::Relaxed));
        if let Err(error) = connection.send_datagram(answer.to_bytes().into()) {
            tracing::debug!(%error, "nobody is told how much was pushed");
        }
    }
}
