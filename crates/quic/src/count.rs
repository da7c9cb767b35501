//! How much a home has pushed: asked and answered in datagrams, which are not sent again when they
//! are lost. So each try is a question of its own, as small as can be, and the first that gets
//! there after a silence is answered; on a stream, that question would have to wait until it is
//! known that the first one was lost. Nor does a home that cannot be reached for hours use up the
//! streams that it allows.

use crate::stream::Close;
use quinn::Connection;
use roam_proto::channel::Lost;
use roam_proto::codec::Wire;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// The answer to a question: its number, and how many messages were pushed by then.
pub(crate) type Answer = (u64, u64);

/// Sends question `number`. It waits while as much is under way as may be: if the link was lost in
/// the middle of something, QUIC's own tries, fewer and fewer, have to find out that it is back.
/// `Lost` if it can never be sent.
pub(crate) fn ask(connection: &Connection, number: u64) -> Result<(), Lost> {
    connection.send_datagram(number.to_bytes().into()).map_err(|error| {
        tracing::debug!(%error, "the home cannot be asked how much it has pushed");
        Lost
    })
}

/// Takes in answers to what was `asked` until the connection ends; of several, the one to the
/// latest question stays.
pub(crate) async fn hear(connection: Connection, asked: Arc<AtomicU64>, latest: watch::Sender<Answer>) {
    while let Ok(datagram) = connection.read_datagram().await {
        let answer = Answer::from_bytes(&datagram).ok().filter(|(number, _)| *number <= asked.load(Ordering::Relaxed));
        let Some(answer) = answer else { return Close::Refused.close(&connection) };
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
