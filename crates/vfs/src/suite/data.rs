//! Contents of files.

use super::*;
use crate::fs::{Appended, FILE_SIZE_MAX};

/// Bytes that depend on their place.
fn pattern(start: u64, len: usize) -> Vec<u8> {
    (start..start + len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

pub(super) async fn reads_see_writes(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let data = pattern(0, 3 * MIB as usize + 12_345);
    let mut at = 0;
    for len in [1, 4095, 4097, 65_535, 65_537, 1_000_000].iter().cycle() {
        let end = data.len().min(at + len);
        t.put(id, h, at as u64, &data[at..end]).await;
        at = end;
        if at == data.len() {
            break;
        }
    }
    assert_eq!(t.attr(id).await.size, data.len() as u64);
    let other = ok!(t.open(&SU, id, READ));
    for (offset, len) in [(0, 10), (1, 70_000), (65_535, 2), (1_048_575, 300_000), (3 * MIB as usize, 12_345)] {
        assert_eq!(t.get(id, other, offset as u64, len as u32).await, data[offset..offset + len]);
    }
    assert_eq!(t.get(id, other, data.len() as u64 - 5, 100).await, data[data.len() - 5..], "short at the end");
    assert_eq!(t.get(id, other, data.len() as u64, 100).await, b"");
    assert_eq!(t.get(id, other, u64::MAX - 7, 100).await, b"");
    assert_eq!(t.get(id, other, 0, 0).await, b"");
    t.put(id, h, 100, b"overwritten").await;
    assert_eq!(t.get(id, other, 99, 13).await, [&data[99..100], b"overwritten", &data[111..112]].concat());
    assert_eq!(ok!(t.write(&SU, id, h, 1 << 40, b"")), 0);
    assert_eq!(t.attr(id).await.size, data.len() as u64, "writing nothing extends nothing");
    ok!(t.release(id, other, None));
    ok!(t.release(id, h, None));
    assert_eq!(&t.content(id).await[111..], &data[111..], "after closing");
}

pub(super) async fn gaps_read_as_zeroes(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    t.put(id, h, 10, b"ten").await;
    t.put(id, h, 200_000, b"far").await;
    let mut expected = vec![0; 200_003];
    expected[10..13].copy_from_slice(b"ten");
    expected[200_000..].copy_from_slice(b"far");
    assert_eq!(t.get(id, h, 0, 300_000).await, expected);
    ok!(t.release(id, h, None));
}

pub(super) async fn files_may_be_huge(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let far = (1 << 40) + 12_345;
    t.put(id, h, far, b"far").await;
    t.put(id, h, 1 << 55, b"further").await;
    assert_eq!(t.attr(id).await.size, (1 << 55) + 7);
    assert_eq!(t.get(id, h, far - 2, 7).await, b"\0\0far\0\0");
    assert_eq!(t.get(id, h, (1 << 55) - 1, 100).await, b"\0further");
    t.put(id, h, FILE_SIZE_MAX - 1, b"!").await;
    assert_eq!(t.attr(id).await.size, FILE_SIZE_MAX);
    assert_eq!(t.get(id, h, FILE_SIZE_MAX - 2, 100).await, b"\0!");
    refuses!(t.write(&SU, id, h, FILE_SIZE_MAX - 1, b"no"), FileTooLarge);
    refuses!(t.write(&SU, id, h, u64::MAX, b"no"), FileTooLarge);
    assert_eq!(t.get(id, h, FILE_SIZE_MAX - 1, 1).await, b"!", "nothing was written");
    t.set(id, size(far + 1)).await;
    assert_eq!(t.get(id, h, far, 100).await, b"f");
    t.set(id, size(FILE_SIZE_MAX)).await;
    refuses!(t.setattr(&SU, id, None, size(FILE_SIZE_MAX + 1)), FileTooLarge);
    assert_eq!(t.get(id, h, 1 << 55, 7).await, [0; 7], "what was cut stays away");
    ok!(t.fsync(id, h, false));
    ok!(t.release(id, h, None));
}

pub(super) async fn truncate_cuts_and_extends(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let data = pattern(7, 200_000);
    t.put(id, h, 0, &data).await;
    for cut in [199_999u64, 131_072, 131_071, 70_000, 65_536, 5, 0] {
        assert_eq!(t.set(id, size(cut)).await.size, cut);
        assert_eq!(t.set(id, size(200_000)).await.size, 200_000);
        let mut expected = data[..cut as usize].to_vec();
        expected.resize(200_000, 0);
        assert_eq!(t.get(id, h, 0, 300_000).await, expected, "cut to {cut}, then extended");
    }
    t.put(id, h, 0, b"abcdef").await;
    ok!(t.setattr(&SU, id, Some(h), size(3)));
    t.put(id, h, 5, b"f").await;
    assert_eq!(t.get(id, h, 0, 99).await, b"abc\0\0f", "a write beyond the end after a cut");
    ok!(t.release(id, h, None));
}

pub(super) async fn append_goes_to_the_end(t: Ctx) {
    let (id, one) = t.open_file("file").await;
    t.put(id, one, 0, b"start").await;
    let two = ok!(t.open(&SU, id, APPEND));
    let three = ok!(t.open(&SU, id, OpenFlags { append: true, ..WRITE }));
    t.put(id, two, 0, b"-two").await;
    t.put(id, three, 2, b"-three").await;
    t.put(id, one, 15, b"-one").await;
    t.put(id, two, 1 << 50, b"-two").await;
    assert_eq!(t.get(id, two, 0, 99).await, b"start-two-three-one-two");
    let end = Appended { offset: 23, count: 5 };
    assert_eq!(ok!(t.append(&SU, id, one, b"-last")), end, "by a handle that does not append otherwise");
    t.put(id, one, 0, b"S").await;
    assert_eq!(t.get(id, two, 0, 99).await, b"Start-two-three-one-two-last");
    let reader = ok!(t.open(&SU, id, READ));
    refuses!(t.append(&SU, id, reader, b"no"), BadHandle);
    ok!(t.release(id, reader, None));
    t.set(id, size(1)).await;
    t.put(id, three, 0, b"!").await;
    assert_eq!(t.get(id, two, 0, 99).await, b"S!");
    for h in [one, two, three] {
        ok!(t.release(id, h, None));
    }
}

pub(super) async fn open_can_truncate(t: Ctx) {
    let id = t.file(ROOT, "file", b"contents").await;
    let reader = ok!(t.open(&SU, id, READ));
    let h = ok!(t.open(&SU, id, OpenFlags { truncate: true, ..RW }));
    assert_eq!(t.attr(id).await.size, 0);
    assert_eq!(t.get(id, reader, 0, 99).await, b"");
    t.put(id, h, 2, b"x").await;
    assert_eq!(t.get(id, reader, 0, 99).await, b"\0\0x");
    refuses!(t.open(&user(9), id, OpenFlags { truncate: true, ..READ }), AccessDenied);
    assert_eq!(t.attr(id).await.size, 3);
    ok!(t.release(id, h, None));
    ok!(t.release(id, reader, None));
}

/// Compared with a vector of bytes.
pub(super) async fn random_changes_read_back(t: Ctx) {
    const BYTES_MAX: u64 = 700_000;
    let (id, h) = t.open_file("file").await;
    let mut model: Vec<u8> = Vec::new();
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for step in 0..300 {
        let offset = random(BYTES_MAX);
        match random(8) {
            0 => {
                t.set(id, size(offset)).await;
                model.resize(offset as usize, 0);
            }
            1 => {
                ok!(t.fsync(id, h, true));
            }
            2 => {
                let end = model.len().min((offset + 100_000) as usize);
                ok!(t.fallocate(&SU, id, h, offset, 100_000, crate::fs::Fallocate::PunchHole));
                model[(offset as usize).min(end)..end].fill(0);
            }
            _ => {
                let max = if random(2) == 0 { 200 } else { 150_000 };
                let data = pattern(step * 1_000_003, 1 + random(max) as usize);
                t.put(id, h, offset, &data).await;
                let end = offset as usize + data.len();
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&data);
            }
        }
        let (from, len) = (random(BYTES_MAX) as usize, random(100_000) as usize);
        let expected = &model[from.min(model.len())..(from + len).min(model.len())];
        assert!(t.get(id, h, from as u64, len as u32).await == expected, "step {step}: {len} bytes at {from}");
    }
    assert!(t.get(id, h, 0, 2 * BYTES_MAX as u32).await == model);
    ok!(t.release(id, h, None));
}

/// Copies all of it, in as many calls as needed, as callers do.
async fn copy(t: &Ctx, from: At, to: At, len: u64) -> u64 {
    let on = |at: At, done| At { offset: at.offset + done, ..at };
    let mut done = 0;
    while done < len {
        let n = ok!(t.copy_file_range(&SU, on(from, done), on(to, done), len - done));
        assert!(n <= len - done);
        done += n;
        if n == 0 {
            break;
        }
    }
    done
}

pub(super) async fn copies_between_files(t: Ctx) {
    let (a, ha) = t.open_file("a").await;
    let (b, hb) = t.open_file("b").await;
    let data = pattern(3, 2 * MIB as usize + 777);
    t.put(a, ha, 0, &data).await;
    assert_eq!(copy(&t, at(a, ha, 0), at(b, hb, 0), data.len() as u64).await, data.len() as u64);
    assert!(t.content(b).await == data);
    assert_eq!(copy(&t, at(a, ha, 100), at(b, hb, 5_000_000), 1000).await, 1000);
    assert_eq!(t.get(b, hb, 4_999_999, 2000).await, [&[0], &data[100..1100]].concat());
    assert_eq!(copy(&t, at(a, ha, data.len() as u64 - 10), at(b, hb, 0), 100).await, 10, "up to the end of the source");
    assert_eq!(t.get(b, hb, 0, 11).await, [&data[data.len() - 10..], &data[10..11]].concat());
    assert_eq!(copy(&t, at(a, ha, 1 << 40), at(b, hb, 0), 100).await, 0);
    t.put(a, ha, 50, b"changed").await;
    assert_eq!(t.get(b, hb, 50, 7).await, &data[50..57], "the copy is its own");
    refuses!(t.copy_file_range(&SU, at(a, ha, 0), at(b, hb, FILE_SIZE_MAX), 5), FileTooLarge);

    let (reader, writer) = (ok!(t.open(&SU, a, READ)), ok!(t.open(&SU, b, WRITE)));
    let append = ok!(t.open(&SU, b, APPEND));
    assert_eq!(copy(&t, at(a, reader, 0), at(b, writer, 0), 5).await, 5);
    refuses!(t.copy_file_range(&SU, at(b, writer, 0), at(a, ha, 0), 5), BadHandle);
    refuses!(t.copy_file_range(&SU, at(b, hb, 0), at(a, reader, 0), 5), BadHandle);
    refuses!(t.copy_file_range(&SU, at(a, ha, 0), at(b, append, 0), 5), BadHandle);
    refuses!(t.copy_file_range(&SU, at(b, ha, 0), at(b, hb, 0), 5), BadHandle);
    for (id, h) in [(a, ha), (b, hb), (a, reader), (b, writer), (b, append)] {
        ok!(t.release(id, h, None));
    }
}

pub(super) async fn copies_within_a_file(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    t.put(id, h, 0, b"0123456789").await;
    assert_eq!(copy(&t, at(id, h, 2), at(id, h, 7), 5).await, 5);
    assert_eq!(t.get(id, h, 0, 99).await, b"012345623456");
    refuses!(t.copy_file_range(&SU, at(id, h, 0), at(id, h, 4), 5), InvalidArgument);
    refuses!(t.copy_file_range(&SU, at(id, h, 4), at(id, h, 0), 5), InvalidArgument);
    refuses!(t.copy_file_range(&SU, at(id, h, 3), at(id, h, 3), 1), InvalidArgument);
    assert_eq!(t.get(id, h, 0, 99).await, b"012345623456");
    ok!(t.release(id, h, None));
}
