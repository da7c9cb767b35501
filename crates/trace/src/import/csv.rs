//! Traces from a plain table (docs/trace-format.md): a header, `time_s,client,op,file,offset,len`,
//! and one line per record, in the order of time.
//!
//! Clients and files have names, which may be quoted; both get numbers in the order in which they
//! appear.

use super::{ImportError, Lines, time_us};
use crate::{Deed, Record};
use std::collections::HashMap;
use std::io::BufRead;
use thiserror::Error;

/// The first line.
pub const HEADER: &str = "time_s,client,op,file,offset,len";
const FIELD_COUNT: usize = 6;

/// What is wrong with a line of a table. The text begins with the field's name if the fault is in
/// one field.
#[derive(Debug, Error)]
pub enum CsvError {
    /// The first line is not [`HEADER`].
    #[error("the header is not {HEADER}")]
    Header,
    /// The line has too many fields.
    #[error("more than {FIELD_COUNT} fields")]
    ManyFields,
    /// The line has too few fields: only this many.
    #[error("{0} fields in place of {FIELD_COUNT}")]
    FewFields(usize),
    /// Text follows the closing quote of this field, counted from 1.
    #[error("field {0}: text follows the closing quote")]
    AfterQuote(usize),
    /// A quoted field has no closing quote.
    #[error("quotes that do not end on this line")]
    OpenQuote,
    /// The time is not a number of seconds.
    #[error("time_s: not a number of seconds")]
    NotSeconds,
    /// The time is earlier than that of the line before it.
    #[error("time_s: earlier than the line before it: sort the lines by time")]
    Earlier,
    /// This field holds no name.
    #[error("{0}: the name is missing")]
    NoName(&'static str),
    /// This field is not a number of bytes.
    #[error("{0}: not a number of bytes")]
    NotBytes(&'static str),
    /// The bytes lie beyond the end of the largest file.
    #[error("len: it reaches beyond the largest file")]
    BeyondLargest,
    /// This field says that only a part of a file is removed.
    #[error("{0}: a file is removed as a whole, leave this empty")]
    PartDeleted(&'static str),
    /// The operation is unknown.
    #[error("op: neither read, write nor delete")]
    UnknownOp,
    /// There are too many clients.
    #[error("client: more than can be numbered")]
    ManyClients,
}

/// Reads a table: an iterator over records.
#[derive(Debug)]
pub struct Csv<R> {
    lines: Lines<R>,
    clients: HashMap<String, u32>,
    files: HashMap<String, u64>,
    /// The time of the first line, and of the last one.
    begun_us: Option<u64>,
    last_us: u64,
    ended: bool,
}

impl<R: BufRead> Csv<R> {
    /// Reads the header.
    pub fn new(from: R) -> Result<Csv<R>, ImportError> {
        let mut lines = Lines::new(from);
        let header = lines.next()?.ok_or(ImportError::Empty)?;
        // Some programs begin a text with a byte order mark.
        if header.trim_start_matches('\u{feff}') != HEADER {
            return Err(lines.fault(CsvError::Header));
        }
        let (clients, files) = (HashMap::new(), HashMap::new());
        Ok(Csv { lines, clients, files, begun_us: None, last_us: 0, ended: false })
    }

    /// The names of the files read so far, each with its number.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.iter().map(|(name, number)| (name.as_str(), *number))
    }

    fn record(&mut self) -> Result<Option<Record>, ImportError> {
        loop {
            let Some(line) = self.lines.next()? else {
                // Lines of zero bytes are not records.
                return if self.clients.is_empty() { Err(ImportError::Empty) } else { Ok(None) };
            };
            if let Some(record) = self.parse(&line).map_err(|what| self.lines.fault(what))? {
                return Ok(Some(record));
            }
        }
    }

    /// Parses a line; `None` if it holds no record.
    fn parse(&mut self, line: &str) -> Result<Option<Record>, CsvError> {
        if line.is_empty() {
            return Ok(None);
        }
        let [time, client, op, file, offset, len] = fields(line)?;
        let now_us = time_us(&time).ok_or(CsvError::NotSeconds)?;
        let begun_us = *self.begun_us.get_or_insert(now_us);
        if now_us < self.last_us.max(begun_us) {
            return Err(CsvError::Earlier);
        }
        self.last_us = now_us;
        for (name, text) in [("client", &client), ("file", &file)] {
            if text.is_empty() {
                return Err(CsvError::NoName(name));
            }
        }
        let number = |name, text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse::<u64>().map_err(|_| CsvError::NotBytes(name)),
            false => Err(CsvError::NotBytes(name)),
        };
        let deed = match op.as_str() {
            "read" | "write" => {
                let (offset, len) = (number("offset", &offset)?, number("len", &len)?);
                if offset.checked_add(len).is_none() {
                    return Err(CsvError::BeyondLargest);
                }
                match (op.as_str(), len) {
                    (_, 0) => return Ok(None),
                    ("read", _) => Deed::Read { offset, len },
                    _ => Deed::Write { offset, len },
                }
            }
            "delete" => {
                for (name, text) in [("offset", &offset), ("len", &len)] {
                    if !text.is_empty() && number(name, text)? != 0 {
                        return Err(CsvError::PartDeleted(name));
                    }
                }
                Deed::Delete
            }
            _ => return Err(CsvError::UnknownOp),
        };
        let next = u32::try_from(self.clients.len()).map_err(|_| CsvError::ManyClients)?;
        let client = *self.clients.entry(client).or_insert(next);
        let next = self.files.len() as u64;
        let file = *self.files.entry(file).or_insert(next);
        Ok(Some(Record { time_us: now_us - begun_us, client, file, deed }))
    }
}

impl<R: BufRead> Iterator for Csv<R> {
    type Item = Result<Record, ImportError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.record().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        record
    }
}

/// The fields of a line. A quoted field may contain commas, and quotes, which are doubled.
fn fields(line: &str) -> Result<[String; FIELD_COUNT], CsvError> {
    let (mut fields, mut rest) = (Vec::new(), Some(line));
    while let Some(text) = rest {
        if fields.len() == FIELD_COUNT {
            return Err(CsvError::ManyFields);
        }
        let (field, after) = match text.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let (field, after) = text.split_at(text.find(',').unwrap_or(text.len()));
                (field.to_owned(), after)
            }
        };
        rest = match after.strip_prefix(',') {
            Some(after) => Some(after),
            None if after.is_empty() => None,
            None => return Err(CsvError::AfterQuote(fields.len() + 1)),
        };
        fields.push(field);
    }
    fields.try_into().map_err(|fields: Vec<String>| CsvError::FewFields(fields.len()))
}

/// A quoted field and the text after it; `text` starts after the opening quote.
fn unquoted(mut text: &str) -> Result<(String, &str), CsvError> {
    let mut field = String::new();
    loop {
        let (before, after) = text.split_once('"').ok_or(CsvError::OpenQuote)?;
        field.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                text = after;
            }
            None => return Ok((field, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Vec<Record>, ImportError> {
        Csv::new(text.as_bytes())?.collect()
    }

    fn lines(lines: &str) -> Result<Vec<Record>, ImportError> {
        read(&format!("{HEADER}\n{lines}"))
    }

    #[test]
    fn a_table_is_read() {
        let table = "1700000000.5,ann,write,\"a, \"\"b\"\"\",0,4096\r\n\n1700000000.5,bob,read,x,8,1\n\
                     1700000001,ann,read,x,8,0\n1700000002.25,ann,delete,\"a, \"\"b\"\"\",,\n";
        let record = |time_us, client, file, deed| Record { time_us, client, file, deed };
        let expected = [
            record(0, 0, 0, Deed::Write { offset: 0, len: 4096 }),
            record(0, 1, 1, Deed::Read { offset: 8, len: 1 }),
            record(1_750_000, 0, 0, Deed::Delete),
        ];
        assert_eq!(lines(table).expect("read"), expected);
        assert_eq!(lines("0,1,delete,a b,0,0\n").expect("read"), [record(0, 0, 0, Deed::Delete)]);
        let text = format!("{HEADER}\n0,a,delete,x,,\n0,a,delete,y,,\n");
        let mut table = Csv::new(text.as_bytes()).expect("a header");
        assert_eq!(table.by_ref().count(), 2);
        assert_eq!(table.files().collect::<std::collections::BTreeMap<_, _>>(), [("x", 0), ("y", 1)].into());
    }

    #[test]
    fn what_is_wrong_is_said_with_line_and_field() {
        for (text, said) in [
            ("1,a,read,x,0,1\n0.5,a,read,x,0,1\n", "line 3: time_s: earlier"),
            ("soon,a,read,x,0,1\n", "line 2: time_s"),
            ("1,,read,x,0,1\n", "line 2: client"),
            ("1,a,look,x,0,1\n", "line 2: op"),
            ("1,a,read,,0,1\n", "line 2: file"),
            ("1,a,read,x,-1,1\n", "line 2: offset"),
            ("1,a,read,x,+1,1\n", "line 2: offset"),
            ("1,a,read,x,0,many\n", "line 2: len"),
            ("1,a,write,x,18446744073709551615,1\n", "line 2: len"),
            ("1,a,delete,x,,7\n", "line 2: len"),
            ("1,a,read,x,0\n", "line 2: 5 fields"),
            ("1,a,read,x,0,1,2\n", "line 2: more than 6"),
            ("1,a,read,\"x,0,1\n", "line 2: quotes"),
            ("1,a,read,\"x\"y,0,1\n", "line 2: field 4"),
            ("1,a,read,x,0,1", "line 2: it breaks off"),
            ("", "it has no records"),
            ("1,a,read,x,0,0\n2,a,write,x,0,0\n", "it has no records"),
        ] {
            let error = lines(text).expect_err(text).to_string();
            assert!(error.starts_with(said), "{text}: {error}");
        }
        assert!(read("time,what\n").expect_err("foreign").to_string().starts_with("line 1: the header"));
        assert!(matches!(read(""), Err(ImportError::Empty)));
        let long = format!("{HEADER}\n1,a,read,{},0,1\n", "x".repeat(2 << 20));
        assert!(read(&long).expect_err("long").to_string().starts_with("line 2: longer"));
        assert!(Csv::new(&b"\xff\xfe\n"[..]).is_err());
    }

    proptest! {
        #[test]
        fn prop_names_are_told_apart_however_they_are_written(names in prop::collection::vec("[a-c,\" ]{1,4}", 1..20)) {
            let row = |name: &String| format!("1,\"c\",read,\"{}\",0,1\n", name.replace('"', "\"\""));
            let found = lines(&names.iter().map(row).collect::<String>()).expect("read");
            for (one, name) in found.iter().zip(&names) {
                for (other, another) in found.iter().zip(&names) {
                    prop_assert_eq!(one.file == other.file, name == another);
                }
            }
        }

        #[test]
        fn prop_garbage_is_read_or_refused(garbage in "[0-9a-z,\".\n-]{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = lines(&garbage);
            if let Ok(table) = Csv::new(&[HEADER.as_bytes(), b"\n", &bytes].concat()[..]) {
                table.for_each(drop);
            }
        }
    }
}
