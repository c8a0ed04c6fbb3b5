//! Tables of admitted and rejected pulls, and the messages of rejections.

use imagelet_core::{image::ByteSize, runtime::RuntimeErrorKind};

use super::{
    Admission::{Compressed, Off, Strict},
    *,
};

fn demand(bytes: u64, bytes_min: u64, inodes: u64, inodes_min: u64) -> Demand {
    let amount = Amount { bytes, bytes_min, inodes, inodes_min };
    Demand { layers: 3, compressed: bytes_min, amount, is_measured: true, keeps_blobs: false }
}

fn space(free_bytes: u64, free_inodes: impl Into<Option<u64>>) -> Space {
    let free_inodes = free_inodes.into();
    Space { free_bytes, free_inodes, bytes_floor: 10, inodes_floor: 5, reserved: Amount::default(), pulls: 0 }
}

fn beside(reserved: (u64, u64, u64, u64), space: Space) -> Space {
    let (bytes, bytes_min, inodes, inodes_min) = reserved;
    Space { reserved: Amount { bytes, bytes_min, inodes, inodes_min }, pulls: 1, ..space }
}

/// `f`: fits; `d`: in doubt; `r`: refused.
fn kind(missing: Option<MissingSpace>) -> char {
    missing.map_or('f', |missing| if missing.is_refusal() { 'r' } else { 'd' })
}

#[test]
fn a_pull_is_let_in_by_what_is_free_reserved_and_kept_to_the_byte_and_inode() {
    let pull = demand(300, 100, 60, 6);
    for (place, strict, compressed) in [
        (space(310, 65), 'f', 'f'),
        (space(309, 65), 'r', 'd'),
        (space(110, 65), 'r', 'd'),
        (space(109, 65), 'r', 'r'),
        (space(0, 65), 'r', 'r'),
        (space(310, 64), 'r', 'd'),
        (space(310, 11), 'r', 'd'),
        (space(310, 10), 'r', 'r'),
        // Without an inode table, inodes cannot run out.
        (space(310, None), 'f', 'f'),
        (beside((50, 20, 4, 1), space(360, 69)), 'f', 'f'),
        (beside((50, 20, 4, 1), space(359, 69)), 'r', 'd'),
        (beside((50, 20, 4, 1), space(360, 68)), 'r', 'd'),
        (beside((50, 20, 4, 1), space(130, 69)), 'r', 'd'),
        (beside((50, 20, 4, 1), space(129, 69)), 'r', 'r'),
        (beside((u64::MAX, 20, 4, 1), space(u64::MAX - 1, 69)), 'r', 'd'),
    ] {
        for (admission, expected) in [(Strict, strict), (Compressed, compressed), (Off, 'f')] {
            assert_eq!(kind(decide(admission, &pull, &place)), expected, "{admission:?} {place:?}");
        }
    }
}

#[test]
fn missing_space_is_reported_for_the_expectation_and_for_the_refusal() {
    let place = beside((50, 20, 4, 1), space(100, 8));
    let short = |bytes_least, inodes_least| MissingSpace { bytes: 260, inodes: 61, bytes_least, inodes_least };
    assert_eq!(decide(Strict, &demand(300, 100, 60, 6), &place), Some(short(260, 61)));
    assert_eq!(decide(Compressed, &demand(300, 100, 60, 6), &place), Some(short(30, 4)));
    assert_eq!(decide(Compressed, &demand(300, 60, 60, 2), &place), Some(short(0, 0)));
}

#[test]
fn a_pull_that_brings_no_layer_needs_no_room() {
    let nothing = Demand::default();
    assert_eq!(decide(Strict, &nothing, &space(0, 0)), None);
}

#[test]
fn others_are_waited_for_where_only_a_guess_of_them_stands_in_the_way() {
    let pull = demand(300, 100, 60, 6);
    for (place, strict, compressed) in [
        // No other pull to wait for, whether it fits or not.
        (space(100, 65), false, false),
        (space(400, 90), false, false),
        // Both estimates together do not fit; the other's minimum leaves space.
        (beside((200, 20, 4, 1), space(400, 90)), true, true),
        // It does not fit alone either.
        (beside((200, 20, 4, 1), space(300, 90)), false, false),
        // The other's minimum takes the space.
        (beside((500, 400, 4, 1), space(500, 90)), false, false),
        // The other's minimum leaves too little for the estimate, and enough for the minimum.
        (beside((500, 200, 4, 1), space(500, 90)), false, true),
    ] {
        assert_eq!(helps_to_wait(Strict, &pull, &place), strict, "{place:?}");
        assert_eq!(helps_to_wait(Compressed, &pull, &place), compressed, "{place:?}");
    }
}

#[test]
fn a_refusal_does_the_arithmetic() {
    let tenths = |value: u64| value * 100_000_000;
    let amount = Amount { bytes: tenths(51), bytes_min: tenths(18), inodes: 40_000, inodes_min: 18 };
    let pull = Demand { layers: 3, compressed: tenths(17), amount, is_measured: true, keeps_blobs: false };
    let reserved = Amount { bytes: tenths(6), inodes: 700, ..Amount::default() };
    let place = Space {
        free_bytes: tenths(22),
        free_inodes: Some(5_000),
        bytes_floor: tenths(10),
        inodes_floor: 1_000,
        reserved,
        pulls: 2,
    };
    let refused = |admission, pull: &Demand, place: &Space, could_free: Option<u64>| {
        let missing = decide(admission, pull, place).expect("it is refused");
        assert!(missing.is_refusal(), "{place:?}");
        refusal_message::refusal(admission, pull, place, &missing, could_free.map(ByteSize))
    };
    let strict = refused(Strict, &pull, &place, Some(tenths(11)));
    assert_eq!(strict.kind(), RuntimeErrorKind::DiskFull);
    assert_eq!(
        strict.to_string(),
        "not enough free space on the store's disk: needs 5.1GB (3 layers not here, 1.7GB compressed x 3.0 measured), \
         2.2GB free of which 600MB reserved by 2 pulls and 1GB kept by freeBytesFloor; a collection could free at \
         most 1.1GB more"
    );
    assert!(strict.hint().is_some_and(|hint| hint.contains("imagelet gc") && hint.contains("compressed")));
    assert_eq!(
        refused(Compressed, &Demand { is_measured: false, ..pull.clone() }, &place, Some(0)).to_string(),
        "not enough free space on the store's disk: needs at least 1.8GB (3 layers not here, 1.7GB compressed), about \
         5.1GB at x 3.0 assumed, 2.2GB free of which 600MB reserved by 2 pulls and 1GB kept by freeBytesFloor; a \
         collection could free nothing more"
    );
    let alone = Space { reserved: Amount::default(), pulls: 0, bytes_floor: 0, ..place };
    let one = Demand { layers: 1, keeps_blobs: true, ..pull.clone() };
    assert_eq!(
        refused(Strict, &one, &alone, None).to_string(),
        "not enough free space on the store's disk: needs 5.1GB (1 layer not here, 1.7GB compressed x 2.0 measured, \
         blobs kept), 2.2GB free"
    );
    let roomy = Space { free_bytes: u64::MAX, pulls: 1, ..place };
    assert_eq!(
        refused(Strict, &pull, &roomy, None).to_string(),
        "not enough free inodes on the store's disk: needs about 40000 inodes (3 layers not here), 5000 inodes free of \
         which 700 reserved by 1 pull and 1000 kept by freeInodesFloor"
    );
    let unreserved = Space { reserved: Amount::default(), inodes_floor: 0, ..roomy };
    assert!(refused(Strict, &pull, &unreserved, None).to_string().ends_with("(3 layers not here), 5000 inodes free"));
    let none = Space { free_inodes: Some(1_010), ..roomy };
    assert!(
        refused(Compressed, &pull, &none, None)
            .to_string()
            .contains("at least 18 inodes (3 layers not here, about 40000")
    );
}
