//! Parses one line of strace's: the process, the time, the call and its arguments.

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The process or thread; 0 if strace does not name it because there is only one.
    pub pid: u32,
    /// The time as written.
    pub stamp: &'a str,
    pub event: Event<'a>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A call, or the first part of one if it ends with strace's mark for that.
    Call(&'a str),
    /// A call goes on: its name, and the rest of it.
    Resumed(&'a str, &'a str),
    /// The process has ended.
    Exited,
    /// Strace follows this new process from now on. The text before that on the line is the first
    /// part of a call.
    Attached(u32, Option<&'a str>),
    /// Any other message of strace.
    Other,
}

/// The mark that strace puts after the first part of a call.
pub const UNFINISHED: &str = "<unfinished ...>";

/// Parses a line. `None` if it is not one of strace's; a line with an empty stamp has no time.
pub fn parse(line: &str) -> Option<Line<'_>> {
    // If strace does not write to a file, this message comes in the middle of the call that makes
    // the process.
    if let Some((before, after)) = line.split_once("strace: Process ")
        && let Some(Ok(child)) = after.trim_end().strip_suffix(" attached").map(str::parse)
    {
        let first = parse(before).filter(|line| matches!(line.event, Event::Call(_)));
        return Some(match first {
            Some(Line { pid, stamp, event: Event::Call(part) }) => {
                Line { pid, stamp, event: Event::Attached(child, Some(part)) }
            }
            _ => Line { pid: 0, stamp: "", event: Event::Attached(child, None) },
        });
    }
    if line.starts_with("strace: ") || line.trim() == UNFINISHED {
        return Some(Line { pid: 0, stamp: "", event: Event::Other });
    }
    let (pid, rest) = pid(line.trim_start());
    let rest = rest.trim_start();
    let is_of_stamp = |c: char| c.is_ascii_digit() || c == '.' || c == ':' || c == '+';
    let (stamp, rest) = rest.split_at(rest.find(|c| !is_of_stamp(c)).unwrap_or(rest.len()));
    let mut rest = rest.trim();
    // With both options, strace also shows the time since the line before.
    if rest.starts_with("(+") {
        rest = rest.split_once(')')?.1.trim();
    }
    let event = if rest.starts_with("+++ exited") || rest.starts_with("+++ killed") {
        Event::Exited
    } else if rest.starts_with("+++ ") || rest.starts_with("--- ") {
        Event::Other
    } else if let Some(resumed) = rest.strip_prefix("<... ") {
        let (name, rest) = resumed.split_once(" resumed>").or_else(|| resumed.split_once(" resumed "))?;
        Event::Resumed(name, rest)
    } else {
        let name = rest.split_once('(')?.0;
        // `???` is a call that strace could not look at.
        if name.is_empty() || name != "???" && !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return None;
        }
        Event::Call(rest)
    };
    Some(Line { pid, stamp, event })
}

/// Splits off the process: `[pid 12] ` on a terminal, `12 ` in a file.
fn pid(line: &str) -> (u32, &str) {
    if let Some(rest) = line.strip_prefix("[pid ")
        && let Some((pid, rest)) = rest.split_once(']')
        && let Ok(pid) = pid.trim().parse()
    {
        return (pid, rest);
    }
    // A number without a point, followed by something other than the call.
    if let Some((pid, rest)) = line.split_once(' ')
        && let Ok(pid) = pid.parse()
    {
        return (pid, rest);
    }
    (0, line)
}

/// A whole call.
#[derive(Debug, PartialEq, Eq)]
pub struct Call<'a> {
    pub name: &'a str,
    pub args: Vec<&'a str>,
    /// The result as written after the equals sign.
    pub result: &'a str,
}

/// Parses a call. `None` if it breaks off.
pub fn call(text: &str) -> Option<Call<'_>> {
    let (name, rest) = text.split_once('(')?;
    let (mut args, mut from) = (Vec::new(), 0);
    let mut inner = Vec::new();
    let (mut is_quoted, mut is_escaped, mut last) = (false, false, b'(');
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            // Within a file's name, which strace puts after its number, only the end mark counts.
            b'>' if inner.last() == Some(&b'>') => drop(inner.pop()),
            _ if inner.last() == Some(&b'>') => {}
            // A shift, as in flags, begins with two of them.
            b'<' if last.is_ascii_alphanumeric() && rest.as_bytes().get(at + 1) != Some(&b'<') => inner.push(b'>'),
            b'(' => inner.push(b')'),
            b'[' => inner.push(b']'),
            b'{' => inner.push(b'}'),
            b',' | b')' if inner.is_empty() => {
                let arg = rest[from..at].trim();
                if !(arg.is_empty() && args.is_empty() && byte == b')') {
                    args.push(arg);
                }
                from = at + 1;
                if byte == b')' {
                    let result = rest[from..].trim_start().strip_prefix('=')?.trim_start();
                    return Some(Call { name, args, result });
                }
            }
            b')' | b']' | b'}' if inner.last() == Some(&byte) => drop(inner.pop()),
            _ => {}
        }
        last = byte;
    }
    None
}

/// The number at the beginning of an argument or a result, such as `3</a/file>` or `-1 ENOENT
/// (...)`, in any base that strace uses.
pub fn number(text: &str) -> Option<i64> {
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let (base, digits) = match digits.strip_prefix("0x") {
        Some(digits) => (16, digits),
        None if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        None => (10, digits),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    let number = i64::from_str_radix(&digits[..end], base);
    match number {
        Ok(number) => Some(if is_negative { -number } else { number }),
        // An octal zero.
        Err(_) if base == 8 && end == 0 => Some(0),
        Err(_) => None,
    }
}

/// The annotation that strace puts after a number: `3</a/file>`.
#[derive(Debug, PartialEq, Eq)]
pub struct Annotation {
    /// A file's name, or another word for its type; without the mark of removed files.
    pub name: Vec<u8>,
    /// The file no longer has this name.
    pub is_removed: bool,
}

/// Parses an [`Annotation`]; `None` if there is none.
pub fn annotation(text: &str) -> Option<Annotation> {
    let (before, rest) = text.split_once('<')?;
    // The duration of a call is also in angle brackets, but not after a number.
    if before.contains('"') || !before.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let (name, after) = rest.split_once('>')?;
    // The kernel's mark is inside the brackets; newer versions of strace put it outside.
    let inside = name.strip_suffix(" (deleted)");
    let is_removed = inside.is_some() || after.starts_with("(deleted)");
    Some(Annotation { name: unescape(inside.unwrap_or(name)), is_removed })
}

/// The bytes of a quoted argument. `None` if it is not quoted, or was cut short.
pub fn string(arg: &str) -> Option<Vec<u8>> {
    let inner = arg.strip_prefix('"')?.strip_suffix('"')?;
    Some(unescape(inner))
}

fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        let [escape, after @ ..] = rest else { break };
        rest = after;
        let digits = |rest: &[u8], base: u32, most: usize| {
            let count = rest.iter().take(most).take_while(|byte| char::from(**byte).is_digit(base)).count();
            let value =
                rest[..count].iter().fold(0, |n, byte| n * base + char::from(*byte).to_digit(base).unwrap_or(0));
            (count, value as u8)
        };
        match *escape {
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'r' => bytes.push(b'\r'),
            b'v' => bytes.push(0x0b),
            b'f' => bytes.push(0x0c),
            b'x' => {
                let (count, value) = digits(rest, 16, 2);
                bytes.push(value);
                rest = &rest[count..];
            }
            b'0'..=b'7' => {
                let (more, _) = digits(rest, 8, 2);
                let all = [&[*escape], &rest[..more]].concat();
                bytes.push(digits(&all, 8, 3).1);
                rest = &rest[more..];
            }
            other => bytes.push(other),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart_as_strace_writes_them() {
        let event = |line| parse(line).map(|line| (line.pid, line.stamp, line.event));
        let call = "read(3, \"x\", 1) = 1";
        assert_eq!(event("12 1700000000.5 read(3, \"x\", 1) = 1"), Some((12, "1700000000.5", Event::Call(call))));
        assert_eq!(event("[pid  12] 10:11:12 read(3, \"x\", 1) = 1"), Some((12, "10:11:12", Event::Call(call))));
        assert_eq!(event("     0.000012 read(3, \"x\", 1) = 1"), Some((0, "0.000012", Event::Call(call))));
        assert_eq!(event("7      0.000012 read(3, \"x\", 1) = 1"), Some((7, "0.000012", Event::Call(call))));
        assert_eq!(
            event("7 1.5 <... read resumed>\"x\", 1) = 1"),
            Some((7, "1.5", Event::Resumed("read", "\"x\", 1) = 1")))
        );
        assert_eq!(event("7 1.5 +++ exited with 0 +++"), Some((7, "1.5", Event::Exited)));
        assert_eq!(event("7 1.5 --- SIGCHLD {si_signo=SIGCHLD} ---"), Some((7, "1.5", Event::Other)));
        assert_eq!(event("strace: Process 12 attached"), Some((0, "", Event::Attached(12, None))));
        let split = event("7 1.5 clone(flags=SIGCHLDstrace: Process 12 attached");
        assert_eq!(split, Some((7, "1.5", Event::Attached(12, Some("clone(flags=SIGCHLD")))));
        assert_eq!(event("7 1.5 ???( <unfinished ...>"), Some((7, "1.5", Event::Call("???( <unfinished ...>"))));
        assert_eq!(event("a letter (to somebody)"), None);
        assert_eq!(event(""), None);
    }

    #[test]
    fn calls_are_taken_apart_whatever_is_quoted() {
        let whole =
            call(r#"openat(AT_FDCWD</a,b)>, "x,\")\"", O_RDONLY|O_CLOEXEC) = 3</a/x> <0.000010>"#).expect("a call");
        assert_eq!(whole.name, "openat");
        assert_eq!(whole.args, ["AT_FDCWD</a,b)>", r#""x,\")\"""#, "O_RDONLY|O_CLOEXEC"]);
        let shown = |name: &str, is_removed| Some(Annotation { name: name.into(), is_removed });
        assert_eq!((number(whole.result), annotation(whole.result)), (Some(3), shown("/a/x", false)));
        assert_eq!(annotation("4</memfd:x (deleted)>"), shown("/memfd:x", true));
        assert_eq!((annotation("4</x>(deleted)"), annotation("0 <0.000010>")), (shown("/x", true), None));
        let shift =
            call("mmap(NULL, 2097152, PROT_READ, MAP_HUGETLB|21<<MAP_HUGE_SHIFT, -1, 0) = 0x7f").expect("a call");
        assert_eq!((shift.args[3], shift.args.len()), ("MAP_HUGETLB|21<<MAP_HUGE_SHIFT", 6));
        let nested = call("openat2(3, {a=[1, 2], b=f(1)}, 24) = -1 ENOENT (No such file)").expect("a call");
        assert_eq!((nested.args.len(), number(nested.result)), (3, Some(-1)));
        assert_eq!(call("getpid() = 5").expect("a call").args.len(), 0);
        assert_eq!(call("read(3, \"abc"), None);
        assert_eq!(call("read(3, \"abc\", 10) "), None);
    }

    #[test]
    fn numbers_and_names_are_read_as_strace_writes_them() {
        let pairs = [("0", 0), ("17<x>", 17), ("0x1f", 31), ("0644", 0o644), ("-1 EBADF", -1), ("00", 0)];
        pairs.into_iter().for_each(|(text, value)| assert_eq!(number(text), Some(value), "{text}"));
        assert_eq!(
            (number("?"), number(""), number("AT_FDCWD"), number("99999999999999999999")),
            (None, None, None, None)
        );
        assert_eq!(string(r#""a\n\"\\\303\244\x41\0""#), Some("a\n\"\\äA\0".as_bytes().to_vec()));
        assert_eq!((string("NULL"), string("\"cut\"...")), (None, None));
    }
}
