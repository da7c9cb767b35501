//! File names in output and in JSON. A name is bytes: it may not be UTF-8, and it may contain
//! control characters that a terminal obeys.

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Puts a name or path into an object as text. If it is not UTF-8, it is also put there as bytes,
/// in `FIELD_bytes`.
pub fn put(object: &mut Value, field: &str, name: &[u8]) {
    object[field] = json!(String::from_utf8_lossy(name));
    if std::str::from_utf8(name).is_err() {
        object[bytes_of(field)] = json!(name);
    }
}

/// The name that [`put`] put into an object.
pub fn get(object: &Value, field: &str) -> Option<Vec<u8>> {
    let text = || object[field].as_str().map(|text| text.as_bytes().to_vec());
    let byte = |byte: &Value| u8::try_from(byte.as_u64()?).ok();
    let bytes = || object[bytes_of(field)].as_array()?.iter().map(byte).collect::<Option<_>>();
    bytes().or_else(text)
}

fn bytes_of(field: &str) -> String {
    format!("{field}_bytes")
}

/// The folder of a path.
pub fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// A name or path on one line, with control characters escaped.
pub fn shown(name: impl AsRef<OsStr>) -> String {
    let mut shown = String::new();
    for chunk in name.as_ref().as_bytes().utf8_chunks() {
        for char in chunk.valid().chars() {
            match char.is_control() {
                true => shown.extend(char.escape_default()),
                false => shown.push(char),
            }
        }
        shown += &chunk.invalid().escape_ascii().to_string();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_folder_in_its_path_is_in_the_current_one() {
        for (path, folder) in [("name", "."), ("a/name", "a"), ("/name", "/"), ("./name", ".")] {
            assert_eq!(folder_of(Path::new(path)), Path::new(folder));
        }
    }

    #[test]
    fn any_name_is_shown_in_a_line_and_comes_back_from_json() {
        for (name, text) in [
            (&b"plain (conflict).txt"[..], "plain (conflict).txt"),
            ("häuser".as_bytes(), "häuser"),
            (b"line\nx", r"line\nx"),
            (b"\x1b[31mred", r"\u{1b}[31mred"),
            (b"caf\xe9.txt", r"caf\xe9.txt"),
        ] {
            assert_eq!(shown(OsStr::from_bytes(name)), text);
            let mut object = json!({ "number": 7 });
            put(&mut object, "path", name);
            assert_eq!(object.get("path_bytes").is_some(), std::str::from_utf8(name).is_err());
            let back: Value = serde_json::from_str(&object.to_string()).expect("JSON");
            assert_eq!(get(&back, "path").as_deref(), Some(name));
            assert_eq!(get(&back, "mine"), None);
        }
    }
}
