//! Compiles the schema with protox, so that no `protoc` is needed, and derives the JSON form of client messages.

use std::{env, error::Error, path::PathBuf};

use prost_build::Config;
use protox::prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

/// Client schema, the only one with a JSON form; log records and the link between nodes have none.
const CLIENT: &str = "tidegate/v1/client.proto";
/// Messages with a oneof; their JSON form is hand-written in `src/codec/envelope.rs`.
const BY_HAND: [&str; 3] = ["ClientFrame", "ServerFrame", "Content"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=tidegate");
    let descriptors = protox::compile([CLIENT, "tidegate/v1/record.proto", "tidegate/v1/link.proto"], ["."])?;
    let mut config = Config::new();
    config
        .bytes(["."])
        .btree_map(["."])
        .extern_path(".tidegate.v1.Content", "crate::content::Content")
        .out_dir(PathBuf::from(env::var("OUT_DIR")?));
    for file in descriptors.file.iter().filter(|file| file.name() == CLIENT) {
        for message in file.message_type.iter().filter(|message| !BY_HAND.contains(&message.name())) {
            json_form(&mut config, message);
        }
    }
    config.compile_fds(descriptors)?;
    Ok(())
}

/// Derives serde for a message so that its JSON is proto3 JSON; the helpers are in `src/codec/fields.rs`.
fn json_form(config: &mut Config, message: &DescriptorProto) {
    let path = format!(".tidegate.v1.{}", message.name());
    config.message_attribute(&path, "#[derive(::serde::Serialize, ::serde::Deserialize)]");
    config.message_attribute(&path, "#[serde(rename_all = \"camelCase\", default)]");
    for field in &message.field {
        let mut parts = vec![read_and_write(message, field)];
        if field.name().contains('_') {
            parts.push(format!("alias = \"{}\"", field.name()));
        }
        parts.push("skip_serializing_if = \"crate::codec::fields::is_default\"".to_owned());
        config.field_attribute(format!("{path}.{}", field.name()), format!("#[serde({})]", parts.join(", ")));
    }
}

fn read_and_write(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let read = |helper: &str| format!("deserialize_with = \"crate::codec::fields::{helper}\"");
    let repeated = field.label() == Label::Repeated;
    match field.r#type() {
        Type::Enum => {
            let name = field.type_name().rsplit('.').next().unwrap_or_default();
            let write =
                format!("serialize_with = \"crate::codec::fields::write_name::<crate::pb::{name}, _>\"");
            format!("{}, {write}", read(&format!("name::<crate::pb::{name}, _>")))
        }
        Type::Message if is_map(message, field) => read("map"),
        Type::Message if repeated => read("messages"),
        Type::Message => read("message"),
        Type::Uint32 | Type::Uint64 if repeated => read("integers"),
        Type::Uint32 | Type::Uint64 if field.proto3_optional() => read("optional_integer"),
        Type::Uint32 | Type::Uint64 => read("integer"),
        // A field with explicit presence is an `Option`, which already reads null as absent.
        Type::Bool if field.proto3_optional() => read("presence"),
        Type::Bool | Type::String => read("value"),
        other => panic!("{}.{}: no JSON form for {other:?}; add a helper", message.name(), field.name()),
    }
}

fn is_map(message: &DescriptorProto, field: &FieldDescriptorProto) -> bool {
    let entry = field.type_name().rsplit('.').next().unwrap_or_default();
    message.nested_type.iter().any(|nested| {
        nested.name() == entry && nested.options.as_ref().is_some_and(|options| options.map_entry())
    })
}
