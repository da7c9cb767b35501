//! Holes, allocation, and what statfs shows.

use super::*;
use crate::fs::{FILE_SIZE_MAX, Fallocate, Seek};

pub(super) async fn allocate_extends_or_keeps_the_size(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    t.put(id, h, 0, b"data").await;
    ok!(t.fallocate(&SU, id, h, 0, 100_000, Fallocate::AllocateKeepSize));
    assert_eq!(t.attr(id).await.size, 4);
    ok!(t.fallocate(&SU, id, h, 50_000, 50_000, Fallocate::Allocate));
    assert_eq!(t.attr(id).await.size, 100_000);
    ok!(t.fallocate(&SU, id, h, 0, 10, Fallocate::Allocate));
    assert_eq!(t.attr(id).await.size, 100_000, "never shorter");
    assert_eq!(t.get(id, h, 0, 6).await, b"data\0\0", "data stays");
    assert_eq!(t.get(id, h, 99_990, 100).await, [0; 10]);
    ok!(t.release(id, h, None));
}

pub(super) async fn holes_are_punched(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let len = 3 * MIB as usize + 500;
    t.put(id, h, 0, &vec![b'x'; len]).await;
    let mut expected = vec![b'x'; len];
    let end = len as u64;
    for (start, len) in [(10, 20), (MIB - 100, 300), (MIB, MIB), (end - 10, 5), (end - 3, 1 << 40), (end + 5, 10)] {
        ok!(t.fallocate(&SU, id, h, start, len, Fallocate::PunchHole));
        expected[start.min(end) as usize..(start + len).min(end) as usize].fill(0);
        assert!(t.get(id, h, 0, 4 << 20).await == expected, "{len} bytes at {start}");
    }
    assert_eq!(t.attr(id).await.size, end);
    t.put(id, h, MIB + 5, b"again").await;
    assert_eq!(t.get(id, h, MIB + 4, 7).await, b"\0again\0");
    ok!(t.release(id, h, None));
}

pub(super) async fn ranges_are_zeroed(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    t.put(id, h, 0, &[b'x'; 1000]).await;
    ok!(t.fallocate(&SU, id, h, 100, 200, Fallocate::ZeroRange));
    ok!(t.fallocate(&SU, id, h, 990, 200, Fallocate::ZeroRangeKeepSize));
    let mut expected = vec![b'x'; 1000];
    expected[100..300].fill(0);
    expected[990..].fill(0);
    assert_eq!(t.get(id, h, 0, 5000).await, expected);
    ok!(t.fallocate(&SU, id, h, 900, 4 * MIB, Fallocate::ZeroRange));
    expected[900..].fill(0);
    assert_eq!(t.attr(id).await.size, 900 + 4 * MIB, "extended");
    assert_eq!(t.get(id, h, 0, 1000).await, expected);
    ok!(t.release(id, h, None));
}

pub(super) async fn fallocate_refuses_bad_input(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let reader = ok!(t.open(&SU, id, READ));
    t.put(id, h, 0, b"data").await;
    for mode in [
        Fallocate::Allocate,
        Fallocate::AllocateKeepSize,
        Fallocate::PunchHole,
        Fallocate::ZeroRange,
        Fallocate::ZeroRangeKeepSize,
    ] {
        refuses!(t.fallocate(&SU, id, h, 0, 0, mode), InvalidArgument);
        refuses!(t.fallocate(&SU, id, h, FILE_SIZE_MAX, 1, mode), FileTooLarge);
        refuses!(t.fallocate(&SU, id, h, 1, u64::MAX, mode), FileTooLarge);
        refuses!(t.fallocate(&SU, id, reader, 0, 4, mode), BadHandle);
    }
    assert_eq!(t.content(id).await, b"data");
    ok!(t.release(id, h, None));
    ok!(t.release(id, reader, None));
}

pub(super) async fn seek_finds_data_and_holes(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    refuses!(t.lseek(id, h, 0, Seek::Data), NoSuchAddress);
    refuses!(t.lseek(id, h, 0, Seek::Hole), NoSuchAddress);
    let mib = vec![1; MIB as usize];
    t.put(id, h, MIB, &mib).await;
    t.put(id, h, 4 * MIB, &mib).await;
    t.set(id, SetAttr { size: Some(8 * MIB), ..SetAttr::default() }).await;
    // Before the data is durable and after.
    for _ in 0..2 {
        for (offset, data, hole) in [
            (0, Some(MIB), 0),
            (MIB / 2, Some(MIB), MIB / 2),
            (MIB, Some(MIB), 2 * MIB),
            (MIB + 7, Some(MIB + 7), 2 * MIB),
            (2 * MIB, Some(4 * MIB), 2 * MIB),
            (5 * MIB - 1, Some(5 * MIB - 1), 5 * MIB),
            (5 * MIB, None, 5 * MIB),
            (8 * MIB - 1, None, 8 * MIB - 1),
        ] {
            match data {
                Some(data) => assert_eq!(ok!(t.lseek(id, h, offset, Seek::Data)), data, "data after {offset}"),
                None => refuses!(t.lseek(id, h, offset, Seek::Data), NoSuchAddress),
            }
            assert_eq!(ok!(t.lseek(id, h, offset, Seek::Hole)), hole, "hole after {offset}");
        }
        ok!(t.fsync(id, h, false));
    }
    for whence in [Seek::Data, Seek::Hole] {
        refuses!(t.lseek(id, h, 8 * MIB, whence), NoSuchAddress);
        refuses!(t.lseek(id, h, u64::MAX, whence), NoSuchAddress);
    }
    ok!(t.fallocate(&SU, id, h, 4 * MIB, MIB, Fallocate::PunchHole));
    refuses!(t.lseek(id, h, 2 * MIB, Seek::Data), NoSuchAddress);
    t.put(id, h, 8 * MIB, b"end").await;
    assert_eq!(ok!(t.lseek(id, h, 2 * MIB, Seek::Data)), 8 * MIB);
    assert_eq!(ok!(t.lseek(id, h, 8 * MIB + 1, Seek::Hole)), 8 * MIB + 3, "the end is a hole");
    ok!(t.release(id, h, None));
}

pub(super) async fn holes_take_no_space(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let blocks = async |t: &Ctx| {
        ok!(t.fsync(id, h, false));
        t.attr(id).await.blocks
    };
    t.set(id, SetAttr { size: Some(1 << 42), ..SetAttr::default() }).await;
    assert_eq!(blocks(&t).await, 0);
    t.put(id, h, 1 << 41, &vec![1; 2 * MIB as usize]).await;
    assert_eq!(blocks(&t).await, 2 * MIB / 512);
    ok!(t.fallocate(&SU, id, h, 1 << 41, MIB, Fallocate::PunchHole));
    assert_eq!(blocks(&t).await, MIB / 512);
    let end = (1 << 41) + 2 * MIB;
    t.put(id, h, 1 << 42, b"the last block of the file is short").await;
    ok!(t.fallocate(&SU, id, h, 1 << 42, 35, Fallocate::PunchHole));
    refuses!(t.lseek(id, h, end, Seek::Data), NoSuchAddress);
    assert_eq!(blocks(&t).await, MIB / 512, "to the end of the file is to the end of its last block");
    t.put(id, h, 1 << 41, &vec![2; MIB as usize]).await;
    t.put(id, h, 1 << 41, &vec![3; MIB as usize]).await;
    assert_eq!(blocks(&t).await, 2 * MIB / 512, "overwriting takes no more");
    t.set(id, SetAttr { size: Some(0), ..SetAttr::default() }).await;
    assert_eq!(blocks(&t).await, 0);
    ok!(t.release(id, h, None));
}

pub(super) async fn statfs_adds_up(t: Ctx) {
    let before = ok!(t.statfs());
    assert!(before.block_size.is_power_of_two() && before.block_size >= 512);
    assert!(0 < before.free_bytes && before.free_bytes <= before.total_bytes);
    assert!(before.files_free > 0);
    let (id, h) = t.open_file("file").await;
    t.put(id, h, 0, &vec![7; 4 * MIB as usize]).await;
    ok!(t.fsync(id, h, false));
    ok!(t.sync());
    let after = ok!(t.statfs());
    assert!(after.free_bytes <= before.free_bytes - 4 * MIB, "written bytes are not free: {before:?}, {after:?}");
    assert_eq!((after.total_bytes, after.block_size), (before.total_bytes, before.block_size));
    ok!(t.release(id, h, None));
}
