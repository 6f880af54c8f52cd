//! Parquet files as the hub has them.

use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

/// The schema that the hub's files have.
pub(crate) const SCHEMA: &str = "
    message schema {
        optional group img { optional binary bytes; optional binary path (STRING); }
        optional int64 label;
    }";

/// A picture, if there is one, with its label.
pub(crate) type Row = (Option<Vec<u8>>, i64);

/// A file of these rows, in groups of a thousand.
pub(crate) fn file(rows: &[Row]) -> Vec<u8> {
    with_schema(SCHEMA, rows)
}

/// The same under a schema whose columns have other names.
pub(crate) fn with_schema(schema: &str, rows: &[Row]) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties.into()).unwrap();
    for rows in rows.chunks(1000) {
        let mut group = writer.next_row_group().unwrap();
        let images = rows.iter().filter_map(|(image, _)| image.clone());
        let presence = rows.iter().map(|(image, _)| if image.is_some() { 2 } else { 1 });
        write_bytes(&mut group, images, &presence.collect::<Vec<_>>());
        let paths = (0..rows.len()).map(|row| format!("{row}.png").into_bytes());
        write_bytes(&mut group, paths, &vec![2; rows.len()]);
        let labels: Vec<i64> = rows.iter().map(|(_, label)| *label).collect();
        let mut column = group.next_column().unwrap().unwrap();
        let presence = vec![1; rows.len()];
        let typed = column.typed::<Int64Type>();
        typed.write_batch(&labels, Some(&presence), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

fn write_bytes(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: impl Iterator<Item = Vec<u8>>,
    presence: &[i16],
) {
    let values: Vec<ByteArray> = values.map(ByteArray::from).collect();
    let mut column = group.next_column().unwrap().unwrap();
    let typed = column.typed::<ByteArrayType>();
    typed.write_batch(&values, Some(presence), None).unwrap();
    column.close().unwrap();
}

/// A PNG of interleaved pixels, three bytes each.
pub(crate) fn png(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(pixels).unwrap();
    writer.finish().unwrap();
    bytes
}
