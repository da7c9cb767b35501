//! The maps that voters and stores keep, and the messages about sessions and file locks.

use cluster::FsConfig;
use cluster::control::{CONTROL_VERSION, ControlAnswer, ControlError, ControlRequest};
use cluster::remote_locks::{LockCall, LockReply};

/// Decodes maps. Maps of older versions are written in the present version.
pub fn maps(bytes: &[u8]) -> bool {
    let Ok(config) = FsConfig::decode(bytes) else { return false };
    assert_eq!(config.may_become(&config), Ok(()));
    assert_eq!(FsConfig::decode(&config.encode()), Ok(config));
    true
}

/// Decodes a message about sessions. The first byte is even for a request and odd for an answer.
pub fn control(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    if kind % 2 == 0 {
        let Ok(request) = ControlRequest::decode(rest) else { return false };
        match request {
            // A later version may have more fields.
            ControlRequest::Hello(hello) if hello.version != CONTROL_VERSION => {}
            request => assert_eq!(request.encode(), rest),
        }
    } else {
        let answer = ControlAnswer::decode(rest);
        if matches!(answer, Err(ControlError::Malformed(_))) {
            return false;
        }
        assert_eq!(ControlAnswer::encode(&answer), rest);
    }
    true
}

/// Decodes a message about file locks. The first byte is even for a request and odd for an answer.
pub fn locks(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    let again = match kind % 2 {
        0 => LockCall::decode(rest).map(|call| call.encode()),
        _ => LockReply::decode(rest).map(|reply| reply.encode()),
    };
    let Ok(again) = again else { return false };
    assert_eq!(again, rest);
    true
}
