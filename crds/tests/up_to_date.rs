//! The checked-in YAML matches the types, and the group does not shadow standard kinds.

use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray,
};

/// Numbers that programs read as signed.
const SIGNED: [&str; 3] = [".observedGeneration", ".limits.iops", ".attempt"];

#[test]
fn yaml_is_what_the_types_generate() {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, content) in holdfast_crds::generated_files() {
        for directory in holdfast_crds::GENERATED_DIRECTORIES {
            let path = crate_directory.join(directory).join(&name);
            let stored = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                stored == content,
                "{} is out of date: run `cargo run -p holdfast-crds --bin generate-crds`",
                path.display()
            );
        }
    }
}

/// `kubectl get volumesnapshots` takes the group that sorts first. In the group `holdfast.dev`, our kind
/// would shadow the standard one in a cluster that has both.
#[test]
fn the_standard_snapshots_come_before_ours() {
    for definition in holdfast_crds::definitions() {
        assert_eq!(definition.spec.group, holdfast_crds::GROUP);
    }
    assert!(holdfast_crds::GROUP > "snapshot.storage.k8s.io");
}

/// Found in review: a node could write a negative number into its part of a status. Programs read these
/// numbers as unsigned, and one object that cannot be read fails every list that contains it.
#[test]
fn no_unsigned_number_of_a_status_can_be_negative() {
    fn negative(path: &str, schema: &JSONSchemaProps, found: &mut Vec<String>) {
        let is_number = schema.type_.as_deref() == Some("integer");
        let is_signed = SIGNED.iter().any(|name| path.ends_with(name));
        if is_number && schema.minimum.is_none() && !is_signed {
            found.push(path.to_owned());
        }
        for (name, property) in schema.properties.iter().flatten() {
            negative(&format!("{path}.{name}"), property, found);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            negative(path, items, found);
        }
    }
    let mut found = Vec::new();
    for definition in holdfast_crds::definitions() {
        for version in &definition.spec.versions {
            let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
            let status = schema.and_then(|schema| schema.properties.as_ref()?.get("status"));
            negative(&definition.spec.names.kind, status.expect("each kind has a status"), &mut found);
        }
    }
    assert_eq!(found, Vec::<String>::new());
}
