//! Which pulls wait after which failures, and for how long.

use proptest::prelude::*;

use super::*;

const FIRST: Duration = Duration::from_secs(10);

fn route(registry: &str, credential: &str, image: &str) -> CircuitKey {
    let repository = image.rsplit_once(':').map_or(image, |(repository, _)| repository).into();
    CircuitKey { registry: registry.into(), repository, credentials: vec![credential.into()], image: image.into() }
}

fn fault(class: ErrorClass) -> Fault {
    Fault::new(class, Stage::Manifest)
}

/// A registry that failed so often.
fn after(failures: u32, class: ErrorClass, route: &CircuitKey, now: Instant) -> Circuits {
    let mut circuits = Circuits::new(FIRST);
    for _ in 0..failures {
        circuits.failed(route, &fault(class), now);
    }
    circuits
}

#[test]
fn three_failures_hold_back_only_the_pulls_they_concern() {
    let now = Instant::now();
    let own = route("r.io", "ada", "r.io/a:v1");
    let others = [
        ("another registry", route("s.io", "ada", "r.io/a:v1")),
        ("another credential", route("r.io", "bob", "r.io/a:v1")),
        ("another image of the repository", route("r.io", "ada", "r.io/a:v2")),
        ("another repository", route("r.io", "ada", "r.io/b:v1")),
    ];
    for (class, held) in [
        (ErrorClass::ConnectionRefused, [false, true, true, true]),
        (ErrorClass::HostNotFound, [false, true, true, true]),
        (ErrorClass::TimedOut, [false, true, true, false]),
        (ErrorClass::RegistryFailed, [false, true, true, false]),
        (ErrorClass::RateLimited, [false, false, true, true]),
        (ErrorClass::Unauthorized, [false, false, false, false]),
    ] {
        assert_eq!(after(2, class, &own, now).admit(&own, now), Ok(()), "{class}: two are not enough");
        let mut circuits = after(3, class, &own, now);
        let refusal = circuits.admit(&own, now).expect_err("three are");
        assert_eq!((refusal.remaining, refusal.failures), (FIRST, 3), "{class}");
        for ((what, other), held) in others.iter().zip(held) {
            assert_eq!(circuits.admit(other, now).is_err(), held, "{class}: {what}");
        }
    }
    for class in [ErrorClass::ImageUnknown, ErrorClass::DiskFull, ErrorClass::Other, ErrorClass::DigestMismatch] {
        assert_eq!(after(9, class, &own, now).admit(&own, now), Ok(()), "{class} says nothing of the registry");
    }
}

#[test]
fn all_pulls_wait_only_after_failures_of_two_repositories_or_of_the_registrys_own_connection() {
    use ErrorClass::{ConnectionRefused, RateLimited, RegistryFailed, TimedOut};
    let now = Instant::now();
    let at = |stage, party, class| Fault { party, ..Fault::new(class, stage) };
    let own = |class| at(Stage::Manifest, Party::Registry, class);
    let store = |class| at(Stage::Connect, Party::RedirectTarget, class);
    let service = |class| at(Stage::Connect, Party::TokenService, class);
    for (what, failures, all, repository) in [
        ("500s of one", vec![("a", own(RegistryFailed)); 9], false, true),
        ("silence to one", vec![("a", own(TimedOut)); 9], false, true),
        (
            "500s of two",
            vec![("a", own(RegistryFailed)), ("b", own(RegistryFailed)), ("a", own(TimedOut))],
            true,
            false,
        ),
        (
            "a success between",
            vec![
                ("a", own(RegistryFailed)),
                ("b", own(RegistryFailed)),
                ("c", own(ErrorClass::ImageUnknown)),
                ("a", own(RegistryFailed)),
            ],
            false,
            false,
        ),
        ("a refused redirect of one", vec![("a", store(ConnectionRefused)); 9], false, true),
        (
            "a refused redirect of two",
            vec![
                ("a", store(ConnectionRefused)),
                ("b", store(ConnectionRefused)),
                ("a", store(ConnectionRefused)),
                ("b", store(ConnectionRefused)),
                ("a", store(ConnectionRefused)),
            ],
            false,
            true,
        ),
        ("a limit of a redirect's target", vec![("a", store(RateLimited)); 9], false, true),
        ("a refused token service of one", vec![("a", service(ConnectionRefused)); 9], false, true),
        (
            "a refused token service of two",
            vec![
                ("a", service(ConnectionRefused)),
                ("b", service(ConnectionRefused)),
                ("b", service(ConnectionRefused)),
            ],
            true,
            false,
        ),
        ("a refused registry", vec![("a", own(ConnectionRefused)); 3], true, false),
    ] {
        let mut circuits = Circuits::new(FIRST);
        for (repository, fault) in failures {
            circuits.failed(&route("r.io", "ada", &format!("r.io/{repository}:v1")), &fault, now);
        }
        let held = |image| circuits.clone_for_test().admit(&route("r.io", "bob", image), now).err();
        let scope = |image| held(image).map(|open: OpenCircuit| open.scope);
        assert_eq!(scope("r.io/z:v1"), all.then_some(CircuitScope::AllPulls), "{what}");
        let own = if all { Some(CircuitScope::AllPulls) } else { repository.then_some(CircuitScope::Repository) };
        assert_eq!(scope("r.io/a:v2"), own, "{what}");
    }
}

#[test]
fn a_repository_that_still_fails_does_not_keep_the_others_waiting() {
    let now = Instant::now();
    let [broken, other, third] = ["r.io/a:v1", "r.io/b:v1", "r.io/c:v1"].map(|image| route("r.io", "ada", image));
    let mut circuits = after(3, ErrorClass::RegistryFailed, &broken, now);
    circuits.failed(&other, &fault(ErrorClass::RegistryFailed), now);
    assert!(circuits.admit(&third, now).is_err(), "two repositories fail");
    let then = now + FIRST;
    assert_eq!(circuits.admit(&broken, then), Ok(()), "the probe");
    assert!(circuits.admit(&third, then).is_err(), "one is enough");
    circuits.failed(&broken, &fault(ErrorClass::RegistryFailed), then);
    assert!(circuits.admit(&broken, then).is_err(), "its own circuit");
    assert_eq!(circuits.admit(&third, then), Ok(()), "the next probe");
    circuits.answered(&third);
    assert_eq!(circuits.admit(&other, then), Ok(()));
    assert!(circuits.admit(&broken, then).is_err(), "a success elsewhere says nothing of it");
}

#[test]
fn a_circuit_opens_once_and_the_text_has_registry_class_and_time_alone() {
    let now = Instant::now();
    let own = route("r.io", "ada", "r.io/secret:v1");
    for (class, asked, opens, text) in [
        (
            ErrorClass::Unreachable,
            None,
            3,
            "circuit opened for registry `r.io` (all-pulls) for 10 s: unreachable at manifest",
        ),
        (ErrorClass::Forbidden, None, 3, "circuit opened for registry `r.io` (images) for 10 s: forbidden at manifest"),
        (
            ErrorClass::RateLimited,
            Some(90),
            1,
            "circuit opened for registry `r.io` (credentials) for 90 s: rate-limited at manifest",
        ),
    ] {
        let mut circuits = Circuits::new(FIRST);
        let met = Fault { retry_after: asked.map(Duration::from_secs), ..fault(class) };
        for failures in 1..=5 {
            let opened = circuits.failed(&own, &met, now).map(|open| open.opening(Stage::Manifest));
            assert_eq!(opened.as_deref(), (failures == opens).then_some(text), "{failures} times {class}");
        }
        // The probe fails: it stays open.
        let then = now + Duration::from_secs(asked.unwrap_or(10));
        assert_eq!(circuits.admit(&own, then), Ok(()));
        assert_eq!(circuits.failed(&own, &met, then), None, "{class}");
        circuits.answered(&own);
        let again = (0..3).filter_map(|_| circuits.failed(&own, &met, then)).count();
        assert_eq!(again, 1, "{class}: it opens again");
    }
    assert_eq!(Circuits::new(FIRST).failed(&own, &fault(ErrorClass::DiskFull), now), None);
}

#[test]
fn one_probe_goes_through_and_decides_for_all() {
    let now = Instant::now();
    let (own, other) = (route("r.io", "ada", "r.io/a:v1"), route("r.io", "bob", "r.io/b:v1"));
    let mut circuits = after(3, ErrorClass::Unreachable, &own, now);
    assert!(circuits.admit(&own, now + FIRST - Duration::from_nanos(1)).is_err());
    let then = now + FIRST;
    assert_eq!(circuits.admit(&own, then), Ok(()), "the probe");
    assert!(circuits.admit(&other, then).is_err(), "one is enough");
    assert_eq!(circuits.admit(&other, then + PROBE_MAX), Ok(()), "it hangs: another");

    let mut failed = circuits.clone_for_test();
    failed.failed(&own, &fault(ErrorClass::HostNotFound), then);
    let refusal = failed.admit(&other, then).expect_err("the wait is longer");
    assert_eq!((refusal.remaining, refusal.class), (FIRST * 2, ErrorClass::HostNotFound));
    circuits.answered(&own);
    assert_eq!((circuits.admit(&other, then), circuits.open(then)), (Ok(()), vec![]));
}

#[test]
fn a_look_ahead_is_no_probe_and_waits_until_one_closed_the_circuit() {
    let now = Instant::now();
    let own = route("r.io", "ada", "r.io/a:v1");
    for (failures, class, then, closed) in [
        (0, ErrorClass::Unreachable, now, true),
        (2, ErrorClass::Unreachable, now, true),
        (3, ErrorClass::Unreachable, now, false),
        (3, ErrorClass::Unreachable, now + FIRST * 9, false),
        (3, ErrorClass::RateLimited, now + FIRST, false),
        (3, ErrorClass::Unauthorized, now + FIRST, false),
    ] {
        let mut circuits = after(failures, class, &own, now);
        assert_eq!(circuits.check_closed(&own, then).is_ok(), closed, "{failures} times {class}");
        if then > now {
            assert_eq!(circuits.admit(&own, then), Ok(()), "the probe is still to come");
            assert!(circuits.check_closed(&own, then).is_err());
        }
        circuits.answered(&own);
        assert_eq!(circuits.check_closed(&own, then), Ok(()));
    }
}

#[test]
fn a_registry_that_names_a_time_is_not_asked_before_it() {
    let now = Instant::now();
    let own = route("r.io", "ada", "r.io/a:v1");
    for (asked, held) in [(30, 30), (1, 10), (299, 299), (300, 300), (301, 300), (86_400, 300)] {
        let mut circuits = Circuits::new(FIRST);
        let limited = Fault { retry_after: Some(Duration::from_secs(asked)), ..fault(ErrorClass::RateLimited) };
        circuits.failed(&own, &limited, now);
        let refusal = circuits.admit(&own, now).expect_err("at once");
        assert_eq!((refusal.remaining.as_secs(), refusal.scope), (held, CircuitScope::Credentials), "{asked} s");
    }
}

#[test]
fn another_failure_ends_what_it_disproves() {
    let now = Instant::now();
    let own = route("r.io", "ada", "r.io/a:v1");
    for (before, then, ended) in [
        (ErrorClass::Unreachable, ErrorClass::Unauthorized, true),
        (ErrorClass::Unreachable, ErrorClass::RegistryFailed, false),
        (ErrorClass::Unreachable, ErrorClass::ImageUnknown, true),
        (ErrorClass::RegistryFailed, ErrorClass::Unauthorized, true),
        (ErrorClass::RegistryFailed, ErrorClass::Unreachable, false),
        (ErrorClass::Unauthorized, ErrorClass::Unreachable, false),
        (ErrorClass::Unauthorized, ErrorClass::ImageUnknown, true),
        (ErrorClass::RateLimited, ErrorClass::Unreachable, false),
        (ErrorClass::Unreachable, ErrorClass::DiskFull, false),
    ] {
        let mut circuits = after(3, before, &own, now);
        circuits.failed(&own, &fault(then), now);
        assert_eq!(circuits.admit(&own, now).is_ok(), ended, "{before}, then {then}");
    }
}

#[test]
fn a_command_is_the_probe_of_an_open_circuit_and_its_outcome_counts() {
    let now = Instant::now();
    let (own, pod) = (route("r.io", "ada", "r.io/a:v1"), route("r.io", "bob", "r.io/b:v1"));
    let soon = now + Duration::from_secs(1);
    for (outcome, remaining) in [
        (Some(ErrorClass::Unreachable), Some(FIRST * 2)),
        (Some(ErrorClass::ImageUnknown), None),
        (Some(ErrorClass::Unauthorized), None),
        (Some(ErrorClass::DiskFull), Some(FIRST.saturating_sub(Duration::from_secs(1)))),
        (None, None),
    ] {
        let mut circuits = after(3, ErrorClass::Unreachable, &own, now);
        circuits.probe(&own, soon);
        assert!(circuits.admit(&pod, soon).is_err(), "pods wait on: {outcome:?}");
        match outcome {
            Some(class) => drop(circuits.failed(&own, &fault(class), soon)),
            None => circuits.answered(&own),
        }
        assert_eq!(circuits.admit(&pod, soon).err().map(|refusal| refusal.remaining), remaining, "{outcome:?}");
    }
    let mut closed = after(1, ErrorClass::Unreachable, &own, now);
    closed.probe(&own, now);
    closed.failed(&own, &fault(ErrorClass::Unreachable), now);
    assert_eq!(closed.admit(&pod, now), Ok(()), "two are not enough");
    closed.failed(&own, &fault(ErrorClass::Unreachable), now);
    assert!(closed.admit(&pod, now).is_err(), "a command's failures count");
}

#[test]
fn open_circuits_are_shown_by_registry_and_scope_and_name_no_image() {
    let now = Instant::now();
    let mut circuits = after(3, ErrorClass::Unreachable, &route("r.io", "ada", "r.io/secret:v1"), now);
    for (image, later) in [("r.io/one:v1", 5), ("r.io/two:v1", 2)] {
        for _ in 0..3 {
            let at = now + Duration::from_secs(later);
            circuits.failed(&route("s.io", "ada", image), &fault(ErrorClass::Unauthorized), at);
        }
    }
    circuits.failed(&route("t.io", "", ""), &fault(ErrorClass::RateLimited), now);
    let shown = |at| -> Vec<(String, &str, u64)> {
        let open = circuits.open(at).into_iter();
        open.map(|it| (it.registry, it.scope.name(), (at + it.remaining - now).as_secs())).collect()
    };
    let all = [("r.io".to_owned(), "all-pulls", 10), ("s.io".to_owned(), "images", 12)];
    assert_eq!(shown(now), all);
    assert_eq!(shown(now + FIRST), all[1..]);
    assert!(!format!("{:?}", circuits.open(now)).contains("secret"));
    circuits.probe(&route("r.io", "ada", "r.io/secret:v1"), now + FIRST);
    assert_eq!(circuits.open(now + FIRST).len(), 2, "a probe is under way");
}

#[test]
fn what_failed_on_its_way_before_does_not_lengthen_the_wait() {
    let now = Instant::now();
    let own = route("r.io", "ada", "r.io/a:v1");
    let mut circuits = after(50, ErrorClass::Unreachable, &own, now);
    assert_eq!(circuits.admit(&own, now).expect_err("open").remaining, FIRST);
}

#[test]
fn circuits_are_bounded_and_the_oldest_goes_first() {
    let now = Instant::now();
    let mut circuits = Circuits::new(FIRST);
    for index in 0..CIRCUITS_MAX as u64 + 100 {
        let own = route(&format!("r{index}.io"), "", "");
        circuits.failed(&own, &fault(ErrorClass::Unreachable), now + Duration::from_nanos(index));
    }
    assert_eq!(circuits.circuits.len(), CIRCUITS_MAX);
    assert!(!circuits.circuits.contains_key(&CircuitScope::AllPulls.key(&route("r0.io", "", ""))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens to one registry: another is never held, no wait is longer than the bound, and after it one
    /// probe is let through.
    #[test]
    fn no_registry_is_held_back_for_ever_or_for_another(
        steps in proptest::collection::vec((0usize..6, 0u64..120, proptest::option::of(0u64..100_000)), 1..60)
    ) {
        let classes = [
            ErrorClass::Unreachable, ErrorClass::RegistryFailed, ErrorClass::RateLimited, ErrorClass::Unauthorized,
            ErrorClass::ImageUnknown, ErrorClass::Other,
        ];
        let mut now = Instant::now();
        let mut circuits = Circuits::new(FIRST);
        let (own, other) = (route("r.io", "ada", "r.io/a:v1"), route("s.io", "ada", "s.io/a:v1"));
        for (class, seconds, asked) in steps {
            now += Duration::from_secs(seconds);
            if circuits.admit(&own, now).is_ok() {
                let met = Fault { retry_after: asked.map(Duration::from_secs), ..fault(classes[class]) };
                circuits.failed(&own, &met, now);
            }
            prop_assert_eq!(circuits.admit(&other, now), Ok(()));
            if let Err(refusal) = circuits.admit(&own, now) {
                prop_assert!(refusal.remaining <= RETRY_AFTER_MAX);
                let later = now + RETRY_AFTER_MAX + PROBE_MAX;
                prop_assert_eq!(circuits.clone_for_test().admit(&own, later), Ok(()));
            }
        }
    }
}

impl Circuits {
    fn clone_for_test(&self) -> Self {
        Self { window_first: self.window_first, circuits: self.circuits.clone() }
    }
}
