//! Tables of admitted and rejected pulls, and the messages of rejections.

use imagelet_core::{error::RuntimeErrorKind, image::ByteSize};

use super::{
    Admission::{Compressed, Off, Strict},
    *,
};

fn demand(bytes: u64, bytes_min: u64, inodes: u64, inodes_min: u64) -> Demand {
    let amount = Amount { bytes, bytes_min, inodes, inodes_min };
    Demand { layers: 3, compressed: bytes_min, amount, is_measured: true, blobs: 0 }
}

fn space(free_bytes: u64, free_inodes: impl Into<Option<u64>>) -> Space {
    let free_inodes = free_inodes.into();
    Space::new((free_bytes, 10), (free_inodes, 5))
}

fn beside(reserved: (u64, u64, u64, u64), space: Space) -> Space {
    let (bytes, bytes_min, inodes, inodes_min) = reserved;
    Space { reserved: Amount { bytes, bytes_min, inodes, inodes_min }, pulls: 1, ..space }
}

/// `f`: fits; `d`: in doubt; `r`: refused.
fn kind(missing: Option<Amount>) -> char {
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
    let short = |bytes_min, inodes_min| Amount { bytes: 260, inodes: 61, bytes_min, inodes_min };
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
    let pull = Demand { layers: 3, compressed: tenths(17), amount, is_measured: true, blobs: 0 };
    let reserved = Amount { bytes: tenths(6), inodes: 700, ..Amount::default() };
    let place = Space {
        free_bytes: tenths(22),
        free_inodes: Some(5_000),
        bytes_floor: tenths(10),
        inodes_floor: 1_000,
        reserved,
        others: Amount::default(),
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
    let one = Demand { layers: 1, blobs: pull.compressed, ..pull.clone() };
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

#[test]
fn a_pull_holds_what_its_rate_writes_in_a_minute_at_least_64_mib_and_never_more_than_its_rest() {
    const MIB: u64 = 1 << 20;
    let rest = |bytes, bytes_min, inodes| Amount { bytes, bytes_min, inodes, inodes_min: 6 };
    for (claim, rate, held) in [
        (rest(448 * MIB, 448 * MIB, 7_000), 0, rest(64 * MIB, 64 * MIB, 1_000)),
        (rest(448 * MIB, 448 * MIB, 7_000), 100, rest(64 * MIB, 64 * MIB, 1_000)),
        (rest(448 * MIB, 200 * MIB, 7_000), 2 * MIB, rest(120 * MIB, 120 * MIB, 1_875)),
        (rest(448 * MIB, 40 * MIB, 7_000), MIB, rest(64 * MIB, 40 * MIB, 1_000)),
        (rest(448 * MIB, 448 * MIB, 7_000), u64::MAX, rest(448 * MIB, 448 * MIB, 7_000)),
        (rest(20 * MIB, 10 * MIB, 70), 0, rest(20 * MIB, 10 * MIB, 70)),
        (Amount::default(), MIB, Amount::default()),
    ] {
        let step = claim.step(rate);
        assert_eq!(Amount { inodes_min: held.inodes_min, ..step }, held, "{claim:?} at {rate} B/s");
        assert!(step.inodes_min <= claim.inodes_min, "{step:?}");
    }
}

#[test]
fn from_its_fourth_mebibyte_on_a_layer_is_expected_to_expand_as_it_does() {
    const MIB: u64 = 1 << 20;
    let estimate = Amount { bytes: 300 * MIB, bytes_min: 105 * MIB, inodes: 900, inodes_min: 6 };
    for (read, written, bytes, bytes_min) in [
        (0, 0, 300, 105),
        (3, 9, 291, 96),
        (3, 200, 100, 0),
        // As estimated, less, more, and not less than what comes.
        (10, 30, 270, 90),
        (10, 10, 90, 90),
        (10, 100, 900, 90),
        (10, 2, 90, 90),
        (100, 400, 0, 0),
    ] {
        let bytes_of = LayerBytes { packed: 100 * MIB, read: read * MIB, written: written * MIB, keeps_blob: false };
        let rest = rest(estimate, bytes_of);
        assert_eq!((rest.bytes / MIB, rest.bytes_min / MIB), (bytes, bytes_min), "{read} MiB are {written} MiB");
        assert!(rest.inodes <= estimate.inodes && rest.inodes_min <= estimate.inodes_min, "{rest:?}");
    }
}

#[test]
fn a_pull_gets_its_next_step_once_its_whole_fits_or_can_be_made_to_fit() {
    let whole = demand(300 << 20, 100 << 20, 60, 6);
    let at = |free: u64| Space::new((free << 20, 0), (None, 0));
    let step = whole.amount.step(0);
    for (free, fit, admission, granted) in [
        (300, Fit::Whole, Compressed, Some(64 << 20)),
        (299, Fit::Whole, Compressed, None),
        (64, Fit::Step, Compressed, Some(64 << 20)),
        (63, Fit::Step, Compressed, None),
        // The half of what is free, until that says nothing more.
        (299, Fit::Part, Compressed, Some(64 << 20)),
        (40, Fit::Part, Compressed, Some(20 << 20)),
        (40, Fit::Part, Strict, Some(20 << 20)),
        (0, Fit::Part, Compressed, None),
        (0, Fit::Whole, Off, Some(64 << 20)),
    ] {
        let got = grant(admission, fit, (&whole, &at(free)), (step, &at(free)));
        assert_eq!(got.ok(), granted, "{fit:?} of {free} MiB");
    }
    let small = demand(900 << 10, 100 << 10, 60, 6);
    let space = Space::new((500 << 10, 0), (None, 0));
    let got = grant(Compressed, Fit::Part, (&small, &space), (small.amount, &space));
    assert_eq!(got, Ok(u64::MAX), "its certain part fits, so the disk decides");
    let full = Space::new((40 << 20, 0), (Some(0), 0));
    let got = grant(Compressed, Fit::Part, (&whole, &full), (step, &full));
    assert!(got.is_err_and(|(_, now)| now.inodes_min > 0), "no byte is written without an inode");
}

#[test]
fn a_pull_that_may_proceed_does_not_wait_for_another_tenant() {
    let pull = demand(300, 100, 60, 6);
    let own = beside((200, 20, 4, 1), space(400, 90));
    let others = Space { others: own.reserved, ..own };
    assert_eq!([own, others].map(|space| helps_to_wait(Compressed, &pull, &space)), [true, false]);
    assert!(helps_to_wait(Strict, &pull, &others), "it would be refused");
}

#[test]
fn one_tenant_holds_half_of_what_is_free_above_the_floors_at_most_against_others() {
    let half = |bytes, inodes| Amount { bytes, bytes_min: bytes, inodes, inodes_min: inodes };
    for (place, most) in [
        (space(110, 25), half(50, 10)),
        (space(10, 5), half(0, 0)),
        (space(9, 4), half(0, 0)),
        (space(110, None), half(50, u64::MAX)),
    ] {
        assert_eq!(place.share_max(), most, "{place:?}");
    }
}

#[test]
fn each_compression_has_its_ratio_and_the_least_is_the_compressed_size_with_a_margin() {
    for (compression, tenths) in
        [(Compression::None, 15), (Compression::Gzip, 30), (Compression::Zstd, 35), (Compression::Stored, 10)]
    {
        let amount = expected(compression, 100 * MEBIBYTE, false);
        assert_eq!(amount.bytes, tenths * 10 * MEBIBYTE + LAYER_BYTES, "{compression:?}");
        // The size of a file is known, and a file is its own blob.
        let (least, blob) = if compression == Compression::Stored { (100, 0) } else { (105, 100) };
        assert_eq!(amount.bytes_min, least * MEBIBYTE + LAYER_BYTES_MIN);
        let with_blob = expected(compression, 100 * MEBIBYTE, true);
        assert_eq!(with_blob.bytes_min - amount.bytes_min, blob * MEBIBYTE);
        assert_eq!(with_blob.bytes - amount.bytes, blob * MEBIBYTE);
    }
    assert_eq!(expected(Compression::Gzip, 2 * MEBIBYTE, false).inodes, 2 * 128 + LAYER_INODES);
    assert_eq!(expected(Compression::Stored, 12 << 30, false).inodes, FILE_INODES + LAYER_INODES);
    let huge = expected(Compression::Gzip, u64::MAX / 4, true);
    assert!(huge.bytes >= huge.bytes_min, "{huge:?}");
}

#[test]
fn an_artifact_of_12_gb_is_taken_with_13_gb_free_and_refused_with_11() {
    const GB: u64 = 1_000_000_000;
    let files = [5 * GB, 7 * GB].map(|size| expected(Compression::Stored, size, true));
    let amount = files.into_iter().fold(Amount::default(), Amount::plus);
    let demand = Demand { amount, ..demand(0, 0, 0, 0) };
    for (free, verdict) in [(13 * GB, 'f'), (12 * GB, 'r'), (11 * GB, 'r')] {
        let place = Space::new((free, 16 * MEBIBYTE), (Some(1_000_000), 1_000));
        for admission in [Strict, Compressed] {
            assert_eq!(kind(decide(admission, &demand, &place)), verdict, "{free} {admission:?}");
        }
    }
}

#[test]
fn a_running_pull_that_writes_on_gets_half_of_what_is_free_and_asks_for_room_at_the_end_of_it() {
    const MIB: u64 = 1 << 20;
    for (granted, free, is_used_up, wanted) in [
        (0, 100 << 30, true, Ok(STEP_MIN)),
        (STEP_MIN + 1, 100 << 30, false, Ok(STEP_MIN + 1)),
        (0, 20 * MIB, true, Ok(10 * MIB)),
        (0, PART_MIN, true, Ok(2 * MIB)),
        (MIB, PART_MIN - 2, false, Ok(2 * MIB - 1)),
        (MIB, PART_MIN - 1, true, Err(1)),
        (MIB, 2 * MIB - 1, false, Err(2 * MIB + 1)),
        (0, 0, true, Err(PART_MIN)),
    ] {
        let found = more(granted, is_used_up, &space(10 + free, None));
        let found = found.map_err(|missing| (missing.bytes, missing.is_refusal()));
        assert_eq!(found, wanted.map_err(|bytes| (bytes, false)), "{granted}, {free} free, {is_used_up}");
    }
}
