//! Selects the runtime handler of a pull (`docs/spec/cri.md §5.5`).

use std::collections::{BTreeMap, BTreeSet};

use imagelet_core::error::{RuntimeError, RuntimeErrorKind};

/// The pod annotation that selects the runtime handler of a pull in containerd.
pub(crate) const HANDLER_ANNOTATION: &str = "io.containerd.cri.runtime-handler";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Handlers {
    #[default]
    Any,
    /// The store accepts these handlers and the default handler.
    Known(BTreeSet<String>),
}

impl Handlers {
    /// Returns the handler of a pull; an empty text is the default handler. An unknown handler in the request's `field`
    /// is an error. If `field` is empty, the handler of the annotation is used, if it is known.
    pub(super) fn choose(
        &self,
        field: &str,
        annotations: Option<&BTreeMap<String, String>>,
    ) -> Result<String, RuntimeError> {
        let is_known = |handler: &str| match self {
            Self::Any => true,
            Self::Known(known) => known.contains(handler),
        };
        if field.is_empty() {
            let hint = annotations.and_then(|annotations| annotations.get(HANDLER_ANNOTATION));
            return Ok(hint.filter(|handler| is_known(handler)).cloned().unwrap_or_default());
        }
        if is_known(field) {
            return Ok(field.to_owned());
        }
        Err(RuntimeError::new(RuntimeErrorKind::InvalidArgument, format!("unknown runtime handler {field:?}")))
    }
}

#[cfg(test)]
mod tests {
    use imagelet_vectors::VectorRun;
    use serde_json::json;

    use super::*;

    #[test]
    fn handlers_are_chosen_as_the_vectors_say() {
        let mut run = VectorRun::once("cri-pinning-and-handler.json", |input| input["rule"] == "snapshotter");
        while let Some(case) = run.next_case() {
            let input = &case.input;
            let stores = input["by_handler"].as_object().unwrap();
            let handlers = Handlers::Known(stores.keys().cloned().collect());
            let annotations: Option<BTreeMap<String, String>> = input["sandbox_config"].as_object().map(|config| {
                config.get("annotations").map_or_else(BTreeMap::new, |of| serde_json::from_value(of.clone()).unwrap())
            });
            let chosen = handlers.choose(input["runtime_handler"].as_str().unwrap(), annotations.as_ref());
            let store = chosen.map(|handler| stores.get(&handler).unwrap_or(&input["default"])).ok();
            run.compare(&case, &json!({"snapshotter": store}));
        }
        run.end();
        assert_eq!(Handlers::Any.choose("kata", None).unwrap(), "kata");
    }

    #[test]
    fn a_handler_that_is_refused_is_named() {
        let refused = Handlers::Known(BTreeSet::from(["kata".to_owned()])).choose("gvisor", None).unwrap_err();
        assert_eq!(refused.to_string(), "unknown runtime handler \"gvisor\"");
    }
}
