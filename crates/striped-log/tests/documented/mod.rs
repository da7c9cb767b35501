//! Reads the examples of pages that document formats; also for the tests of other crates.

/// The cells of the rows of the first table with an example column under a heading.
pub fn rows<'a>(document: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, section) = document.split_once(&format!("\n### {heading}\n")).expect("the heading is there");
    section
        .lines()
        .take_while(|line| !line.starts_with('#'))
        .skip_while(|line| !(line.starts_with('|') && line.ends_with("| example |")))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// The bytes that an example cell shows.
pub fn example(cell: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut words = cell.trim_matches('`').split_whitespace().peekable();
    while let Some(word) = words.next() {
        if words.next_if_eq(&"x").is_some() {
            let byte = words.next().expect("a byte after x");
            let count: usize = word.parse().expect("a count before x");
            bytes.resize(bytes.len() + count, u8::from_str_radix(byte, 16).expect("a byte"));
        } else {
            bytes.push(u8::from_str_radix(word, 16).expect("a byte"));
        }
    }
    bytes
}

/// The whole example of a table whose rows are consecutive fields.
pub fn structure(document: &str, heading: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for row in rows(document, heading) {
        let [offset, len, field, _, cell] = row[..] else { panic!("{heading}: {row:?} has not five cells") };
        assert_eq!(offset, bytes.len().to_string(), "{heading}: offset of {field}");
        let field_bytes = example(cell);
        assert_eq!(len, field_bytes.len().to_string(), "{heading}: length of {field}");
        bytes.extend(field_bytes);
    }
    assert!(!bytes.is_empty(), "{heading}: no table");
    bytes
}
