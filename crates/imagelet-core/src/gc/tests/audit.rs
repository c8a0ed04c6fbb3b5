//! Tests of the audit record of a collection.

use std::{sync::Arc, time::Duration};

use super::{Node, at};
use crate::{
    audit_log::{ActCode, AuditLog, HappeningKind},
    gc::{GcGoal, GcOrder, GcPolicy, GcRequest, RunTrigger},
    image::ByteSize,
    runtime::RuntimeErrorKind,
    testing::in_order,
};

#[tokio::test]
async fn the_log_has_what_a_collection_removed_spared_and_failed_to_remove() {
    let node = Node::new(500);
    let (a, b) = (node.idle("a:1", 200, 10).await, node.idle("b:1", 250, 20).await);
    node.fake.fail(&format!("remove {a}"), RuntimeErrorKind::Other, "busy");
    let report = node.collect(GcGoal::Threshold).await;
    let asked = RunTrigger { by: "timer".into(), shadow: false };
    let folder = tempfile::tempdir().unwrap();
    let log = AuditLog::new(folder.path(), 1 << 20);
    log.run(report.to_audit(&asked, (at(10_000), at(10_001))));
    let happened = |text: &str| {
        let history = log.history(text).unwrap();
        let all = &history.images[0].happenings;
        all.iter().map(|it| (it.kind, it.code.clone(), it.text.clone())).collect::<Vec<_>>()
    };
    let failed = happened("a:1");
    assert!(
        failed
            .iter()
            .any(|(kind, code, text)| (*kind, code.as_str(), text.as_str()) == (HappeningKind::Failed, "room", "busy")),
        "{failed:?}"
    );
    let removed = happened(b.as_str());
    assert_eq!(removed.last().map(|(kind, code, _)| (*kind, code.as_str())), Some((HappeningKind::Removed, "room")));
    assert!(removed.iter().all(|(kind, _, _)| *kind != HappeningKind::Gone), "{removed:?}");
}

#[tokio::test]
async fn in_shadow_mode_every_port_is_only_read() {
    for goal in [GcGoal::Threshold, GcGoal::AllUnused, GcGoal::Free(ByteSize(300))] {
        for order in [GcOrder::Lru, GcOrder::ListedSizes] {
            let node = Node::new(500);
            node.idle("a:1", 200, 10).await;
            node.idle("b:1", 250, 20).await;
            node.fake.take_calls();
            let policy = GcPolicy::new(90, 80, Duration::from_mins(2), Some(Duration::from_mins(1))).unwrap();
            let policy = in_order(order, policy);
            let report = node.gc.run(&GcRequest { policy, goal, dry_run: true }, at(10_000)).await.unwrap();
            assert!(report.chosen().count() > 0 && report.removed().next().is_none(), "{goal:?} {order:?}");
            let calls = node.fake.take_calls();
            let reads = ["list", "status", "containers", "sandboxes", "mounts", "filesystem", "layers"];
            let is_read = |call: &String| reads.iter().any(|verb| call.split(' ').next() == Some(*verb));
            assert!(!calls.is_empty() && calls.iter().all(is_read), "{goal:?} {order:?}: {calls:?}");
        }
    }
}

#[tokio::test]
async fn a_removal_is_recorded_before_it_is_done_and_shown_once() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(AuditLog::new(folder.path(), 1 << 20));
    let mut node = Node::new(500);
    node.idle("a:1", 200, 10).await;
    node.idle("b:1", 250, 20).await;
    node.gc = node.gc.with_decisions(Arc::clone(&log));
    let report = node.collect(GcGoal::Free(ByteSize(100))).await;
    assert_eq!(report.removed().count(), 1);
    let id = report.decisions[0].entry.image.id.clone();
    let kinds = || {
        log.flush();
        let history = log.history(id.as_str()).unwrap();
        history.images.iter().flat_map(|image| image.happenings.iter().map(|it| it.kind)).collect::<Vec<_>>()
    };
    assert_eq!(
        kinds(),
        [HappeningKind::Found, HappeningKind::Act(ActCode::Removing)],
        "its collection has recorded nothing yet"
    );
    let asked = RunTrigger { by: "timer".to_owned(), shadow: false };
    log.run(report.to_audit(&asked, (at(10_000), at(10_001))));
    assert_eq!(kinds(), [HappeningKind::Found, HappeningKind::Removed]);
}
