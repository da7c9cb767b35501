//! Parses and shows sizes in bytes.

const UNITS: [(&str, u32); 9] =
    [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("K", 10), ("M", 20), ("G", 30), ("T", 40), ("B", 0)];

/// Parses `64KiB`, `512MiB`, `1G` or `4096` to bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: write a number of bytes, or one with KiB, MiB, GiB or TiB");
    let (number, shift) = match UNITS.iter().find(|(unit, _)| text.ends_with(unit)) {
        Some((unit, shift)) => (&text[..text.len() - unit.len()], *shift),
        None => (text, 0),
    };
    let number: u64 = number.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Bytes as text: `1.5 MiB`.
pub fn show(bytes: u64) -> String {
    let unit = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut at = 0;
    while value >= 1024.0 && at + 1 < unit.len() {
        value /= 1024.0;
        at += 1;
    }
    if at == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", unit[at]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64KiB"), Ok(65536));
        assert_eq!(parse("2G"), Ok(2 << 30));
        assert_eq!(parse("512 MiB"), Ok(512 << 20));
        for wrong in ["", "x", "-1", "1.5GiB", "64QiB", "99999999999TiB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_shown_with_a_unit() {
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(1536), "1.5 KiB");
    }
}
