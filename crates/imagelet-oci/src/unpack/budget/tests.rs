//! Layers that share memory: what each can have, and in which order they get it.

use super::*;

const MIB: usize = 1 << 20;

fn tenant(namespace: &str) -> Arc<Tenant> {
    Arc::new(Tenant { namespace: namespace.into(), credential: None })
}

fn sharing(free: u64) -> Arc<UnpackBudget> {
    Arc::new(UnpackBudget::sharing(free, OWN_NOTES_MIN, (free / 2).max(TENANT_MIN.min(free))))
}

/// Whether another layer waits for memory that this one holds.
fn is_wanted(layer: &LayerMemory) -> bool {
    layer.holds_shared() && locked(&layer.budget.pool).lacks(&layer.owner).is_some()
}

/// A layer of a tenant.
fn layer(budget: &Arc<UnpackBudget>, namespace: &str) -> Arc<LayerMemory> {
    metered(budget, namespace, 0)
}

/// A layer whose registry brings so many bytes a second, for ten seconds now.
fn metered(budget: &Arc<UnpackBudget>, namespace: &str, rate: u64) -> Arc<LayerMemory> {
    let meter = Arc::new(HoldMeter::new(Instant::now() - Duration::from_secs(10)));
    meter.add(10 * rate);
    budget.layer(&tenant(namespace), &format!("{namespace}:v1").into(), &meter)
}

#[test]
fn directories_are_kept_open_up_to_the_bound_and_given_back() {
    let budget = Arc::new(UnpackBudget::new(UNPACK_MEMORY_DEFAULT));
    let mut held: Vec<OwnedSemaphorePermit> = std::iter::from_fn(|| budget.directory()).collect();
    assert_eq!(held.len(), DIRECTORIES_MAX);
    held.pop();
    assert!(budget.directory().is_some());
}

#[test]
fn the_least_budget_holds_the_largest_header_and_the_window_of_every_decoder() {
    let budget = Arc::new(UnpackBudget::new(0));
    let mut claim = MemoryReservation::on(&layer(&budget, "a"));
    let header = crate::unpack::UnpackLimits::default().header_max;
    claim.grow(8 * MIB + 4 * header + (4 << 20)).expect("it fits");
}

#[test]
fn by_default_each_layer_has_a_mebibyte_of_its_own_and_one_tenant_a_window_of_32() {
    let budget = Arc::new(UnpackBudget::new(UNPACK_MEMORY_DEFAULT));
    let layers: Vec<_> = (0..LAYERS_MAX).map(|_| layer(&budget, "a")).collect();
    let mut claims: Vec<_> = layers.iter().map(MemoryReservation::on).collect();
    for claim in &mut claims {
        claim.grow(MIB).expect("each layer has it, whatever the others hold");
    }
    assert!(!layers[0].holds_shared());
    claims[0].grow(32 * MIB + (512 << 10)).expect("a window and its decoder");
}

#[test]
fn a_tenant_that_holds_all_it_can_leaves_the_other_half_to_others() {
    let budget = sharing(64 << 20);
    let layers: Vec<_> = ["a", "a", "b"].map(|name| layer(&budget, name)).into();
    let mut claims: Vec<_> = layers.iter().map(MemoryReservation::on).collect();
    claims[0].grow(20 * MIB).expect("it is free");
    assert_eq!(claims[1].grow(20 * MIB), Err(MemoryError::Busy), "the half of its tenant is used up");
    claims[1].grow(11 * MIB).expect("the rest of that half");
    claims[2].grow(31 * MIB).expect("the other half");
}

#[test]
fn all_layers_together_take_no_more_than_the_budget_and_what_they_give_back_is_there_again() {
    let budget = sharing(20 << 20);
    let layers: Vec<_> = (0..4).map(|number| layer(&budget, &format!("t{number}"))).collect();
    let mut claims: Vec<_> = layers.iter().map(MemoryReservation::on).collect();
    for claim in &mut claims {
        claim.grow(usize::try_from(OWN_NOTES_MIN).unwrap()).expect("each layer has some of its own");
    }
    claims[0].grow(12 * MIB).expect("it is free");
    assert_eq!(claims[1].grow(12 * MIB), Err(MemoryError::Busy));
    assert!(layers[1].was_refused() && !layers[0].was_refused());
    assert!(!claims[2].grow_if_free(12 * MIB) && !layers[2].was_refused());
    assert!(layers[0].holds_shared() && !layers[1].holds_shared());
    claims[1].grow(6 * MIB).expect("as much is free");
    drop((claims, layers));
    MemoryReservation::on(&layer(&budget, "a")).grow(16 * MIB).expect("all is free again");
}

#[test]
fn one_layer_is_refused_what_no_layer_may_have_and_told_the_limit() {
    let mut claim = MemoryReservation::on(&LayerMemory::of_its_own(1 << 20));
    claim.grow(MIB).expect("as much as there is");
    let limit = (1 << 20) + OWN_NOTES_MIN;
    assert_eq!(claim.grow(MIB), Err(MemoryError::Limit(limit)));
    assert!(MemoryError::Limit(limit).to_string().contains(&format!("the limit is {}", ByteSize(limit))));
    claim.clear();
    claim.grow(MIB).expect("it was given back");
    drop(claim);
    let mut all = MemoryReservation::on(&LayerMemory::of_its_own(1 << 20));
    all.grow(usize::try_from(limit).unwrap()).expect("to the byte");
    assert_eq!(all.grow(1), Err(MemoryError::Limit(limit)));
}

#[test]
fn what_a_claim_took_is_given_back_whichever_way_it_was_taken() {
    let memory = LayerMemory::of_its_own(1 << 20);
    for _ in 0..3 {
        let mut claim = MemoryReservation::on(&memory);
        assert!(claim.grow_if_free(MIB / 2));
        claim.grow(MIB / 2).expect("the rest is free");
        assert!(!claim.grow_if_free(MIB));
    }
    let mut claim = MemoryReservation::on(&memory);
    assert!(claim.grow_if_free(MIB));
    claim.clear();
    claim.grow(MIB).expect("all of it");
}

#[tokio::test]
async fn layers_that_were_refused_come_one_after_the_other_and_none_waits_for_ever() {
    let budget = sharing(20 << 20);
    let first = layer(&budget, "first");
    let mut claim = MemoryReservation::on(&first);
    claim.grow(12 * MIB).expect("it is free");
    let waiting: Vec<_> = (0..3)
        .map(|number| {
            let budget = Arc::clone(&budget);
            tokio::spawn(async move {
                let layer = budget.whole_layer(layer(&budget, &format!("t{number}"))).await;
                MemoryReservation::on(&layer).grow(16 * MIB).expect("the whole of a tenant is its own");
            })
        })
        .collect();
    tokio::task::yield_now().await;
    assert!(is_wanted(&first));
    // A later request does not overtake.
    assert_eq!(MemoryReservation::on(&layer(&budget, "later")).grow(MIB), Err(MemoryError::Busy));
    drop((claim, first));
    for task in waiting {
        task.await.expect("no panic");
    }
}

#[tokio::test]
async fn a_tenant_that_waits_for_its_own_memory_keeps_no_other_waiting() {
    let budget = sharing(64 << 20);
    let (holder, other) = (layer(&budget, "a"), layer(&budget, "b"));
    let mut held = MemoryReservation::on(&holder);
    held.grow(20 * MIB).expect("it is free");
    let mut waiting = Box::pin(budget.whole_layer(layer(&budget, "a")));
    assert!(futures_util::FutureExt::now_or_never(&mut waiting).is_none(), "its tenant has not the whole half");
    assert!(is_wanted(&holder) && !is_wanted(&other));
    assert_eq!(budget.holder().as_deref(), Some("a:v1"));
    MemoryReservation::on(&other).grow(30 * MIB).expect("the other half is free");
    drop(waiting);
    assert!(!is_wanted(&holder), "a wait that is dropped leaves the line");
    drop((held, holder, other));
    assert_eq!(locked(&budget.pool).free, 64 << 20);
}

#[tokio::test]
async fn a_layer_that_waits_for_its_first_memory_can_be_cancelled_and_gets_it_otherwise() {
    let budget = sharing(20 << 20);
    let holder = layer(&budget, "holder");
    let mut held = MemoryReservation::on(&holder);
    held.grow(15 * MIB).expect("it is free");
    let layer = layer(&budget, "waits");
    let wait = |cancelled: bool| {
        let layer = Arc::clone(&layer);
        tokio::task::spawn_blocking(move || {
            let mut claim = MemoryReservation::on(&layer);
            claim.grow_to(8 << 20, &AtomicBool::new(cancelled))
        })
    };
    assert_eq!(wait(true).await.expect("no panic"), Err(MemoryError::Cancelled));
    assert!(!layer.is_awaited() && !layer.holds_shared());
    let waiting = wait(false);
    while !layer.is_awaited() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop((held, holder));
    assert_eq!(waiting.await.expect("no panic"), Ok(()));
    assert!(!layer.is_awaited() && layer.holds_shared());
    // It holds some, and must not wait for more.
    let mut rest = MemoryReservation::on(&layer);
    let taken = tokio::task::spawn_blocking(move || rest.grow_to(15 << 20, &AtomicBool::new(false)));
    assert_eq!(taken.await.expect("no panic"), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn of_fast_holders_the_slowest_gives_way_once_a_layer_has_waited_ten_seconds_and_a_slow_one_at_once() {
    let budget = sharing(64 << 20);
    let (fast, slower) = (9 << 20, 2 << 20);
    let holders = [("a", fast), ("b", slower)].map(|(name, rate)| metered(&budget, name, rate));
    let mut claims: Vec<_> = holders.iter().map(MemoryReservation::on).collect();
    for claim in &mut claims {
        claim.grow(31 * MIB).expect("it is free");
    }
    let network = HoldMeter::new(Instant::now() - Duration::from_secs(10));
    network.add(100 << 20);
    let give_way = |network: &HoldMeter| {
        let gives = |layer: &Arc<LayerMemory>| layer.gives_way(HoldPolicy::default(), network, Instant::now());
        [gives(&holders[0]), gives(&holders[1])]
    };
    let slow = HoldMeter::new(Instant::now() - Duration::from_secs(10));
    assert_eq!(give_way(&slow), [false, false], "nothing waits");
    let mut waiting = Box::pin(budget.whole_layer(layer(&budget, "c")));
    assert!(futures_util::FutureExt::now_or_never(&mut waiting).is_none(), "all is held");
    assert_eq!(give_way(&network), [false, false]);
    assert_eq!(give_way(&slow), [true, true]);
    tokio::time::advance(Duration::from_secs(10)).await;
    network.add(100 << 20);
    for (holder, rate) in holders.iter().zip([fast, slower]) {
        holder.owner.meter.add(10 * rate);
    }
    assert_eq!(give_way(&network), [false, true], "the slowest");
    drop(waiting);
    assert_eq!(give_way(&network), [false, false]);
}
