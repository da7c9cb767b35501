//! Lines: several volumes on one connection. [`pack`](crate::message::pack) uses only the lowest
//! bit of a message's first byte. The other bits hold the number of the line, so a line costs no
//! bytes. An answer goes back on its request's stream and needs no line.

use bytes::{Bytes, BytesMut};

/// Most lines of a connection: the seven bits that are left in the first byte.
pub const LINE_COUNT_MAX: u8 = 128;

fn change_first(message: Bytes, change: impl FnMut(&mut u8)) -> Bytes {
    // A message that was just packed or received has no other owner. Then nothing is copied.
    let mut message = message.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    message.first_mut().into_iter().for_each(change);
    message.freeze()
}

/// Puts a packed message on a line, a number below [`LINE_COUNT_MAX`].
pub fn put_on(line: u8, message: Bytes) -> Bytes {
    match line {
        0 => message,
        _ => change_first(message, |first| *first |= line << 1),
    }
}

/// Returns the line of a message, and the message as it was packed.
pub fn take_off(message: Bytes) -> (u8, Bytes) {
    match message.first().map_or(0, |first| first >> 1) {
        0 => (0, message),
        line => (line, change_first(message, |first| *first &= 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Pushed, Request, pack, unpack};
    use types::FileId;

    #[test]
    fn a_message_comes_off_the_line_that_it_was_put_on() {
        let short = pack(&Request::Renew);
        let long = pack(&Request::Facts { files: vec![FileId::ROOT; 1000] });
        assert!(long.len() < 1000, "it is compressed");
        for message in [short, long, Bytes::new(), pack(&Pushed::Wanted { seq: 1, offset: 2, len: 3 })] {
            for line in [0, 1, LINE_COUNT_MAX - 1] {
                let sent = put_on(line, message.clone());
                assert_eq!(sent.len(), message.len());
                let (found, back) = take_off(sent);
                assert_eq!(back, message);
                assert_eq!(found, if message.is_empty() { 0 } else { line });
            }
        }
        assert!(unpack::<Request>(&put_on(1, pack(&Request::Renew))).is_err(), "it is still on its line");
    }
}
