//! The rows of the hub's Parquet files as records of the official binary files.
//!
//! A row has `img`, a structure of `bytes` (a PNG of 32 x 32 RGB pixels) and `path` (which says
//! nothing), and `label`, a 64-bit number from 0 to 9.

use std::fs::File;
use std::io::Cursor;
use std::path::Path;

use parquet::basic::Type;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArrayType, DataType, Int64Type};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;

use crate::data::cifar10::{CLASSES, PIXELS, RECORD};
use crate::data::error::{Error, Result};
use crate::data::fetch::planes_of;

/// Why a file cannot be used, in words; the caller adds which file.
type Reason = String;

/// Memory that the decoder of one small picture may take.
const PICTURE_MEMORY: usize = 1 << 20;

/// Reads a file of `expected` rows: label byte, red, green and blue plane of each.
pub fn records(path: &Path, expected: usize) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    read(file, expected).map_err(|reason| {
        let name = path.file_name().unwrap_or_default().display();
        Error::Foreign(format!("{name}: {reason}"))
    })
}

fn read(file: File, expected: usize) -> std::result::Result<Vec<u8>, Reason> {
    let unreadable = |error| format!("it cannot be read: {error}");
    let reader = SerializedFileReader::new(file).map_err(unreadable)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let images = column(schema, "img.bytes", Type::BYTE_ARRAY)?;
    let labels = column(schema, "label", Type::INT64)?;
    let groups = reader.metadata().row_groups();
    let rows: i64 = groups.iter().map(|group| group.num_rows()).sum();
    if usize::try_from(rows) != Ok(expected) {
        return Err(format!("it has {rows} rows, not {expected}"));
    }

    let bar = lab::ProgressBar::new("decoding", expected as u64);
    let mut records = Vec::with_capacity(expected * RECORD);
    for number in 0..reader.num_row_groups() {
        let group = reader.get_row_group(number).map_err(unreadable)?;
        let images = values::<ByteArrayType>(&*group, images)?;
        let labels = values::<Int64Type>(&*group, labels)?;
        for (image, label) in images.iter().zip(labels) {
            let row = records.len() / RECORD;
            if !(0..CLASSES.len() as i64).contains(&label) {
                return Err(format!("the label of row {row} is {label}, not 0 to 9"));
            }
            records.push(label as u8);
            let planes = decode(image.data());
            records.extend(planes.map_err(|reason| format!("the picture of row {row}: {reason}"))?);
            bar.advance(1);
        }
    }
    Ok(records)
}

/// The place of a column by its name, if it is of this type and not a list.
fn column(schema: &SchemaDescriptor, name: &str, kind: Type) -> std::result::Result<usize, Reason> {
    let mut columns = schema.columns().iter();
    let place = columns.position(|column| {
        let is_plain = column.max_rep_level() == 0;
        column.path().string() == name && column.physical_type() == kind && is_plain
    });
    place.ok_or_else(|| format!("it has no column {name} of type {kind}"))
}

/// All values of a column in a group of rows, none of which may be missing.
fn values<T: DataType>(
    group: &dyn RowGroupReader,
    column: usize,
) -> std::result::Result<Vec<T::T>, Reason> {
    let unreadable = |error| format!("it cannot be read: {error}");
    let rows = usize::try_from(group.metadata().num_rows()).map_err(|error| error.to_string())?;
    let reader = group.get_column_reader(column).map_err(unreadable)?;
    let (mut values, mut presence) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    get_typed_column_reader::<T>(reader)
        .read_records(rows, Some(&mut presence), None, &mut values)
        .map_err(unreadable)?;
    if values.len() != rows {
        let missing = rows.saturating_sub(values.len());
        let name = group.metadata().column(column).column_path().string();
        return Err(format!("{missing} values of {name} are missing"));
    }
    Ok(values)
}

/// The red, green and blue plane of a PNG.
fn decode(png: &[u8]) -> std::result::Result<Vec<u8>, Reason> {
    let limits = png::Limits { bytes: PICTURE_MEMORY };
    let damaged = |error: png::DecodingError| format!("it is no sound PNG: {error}");
    let decoder = png::Decoder::new_with_limits(Cursor::new(png), limits);
    let mut reader = decoder.read_info().map_err(damaged)?;
    let info = reader.info();
    let is_rgb = (info.color_type, info.bit_depth) == (png::ColorType::Rgb, png::BitDepth::Eight);
    if (info.width, info.height) != (32, 32) || !is_rgb {
        return Err(format!(
            "it has {} x {} pixels of {:?}, not 32 x 32 of Rgb",
            info.width, info.height, info.color_type
        ));
    }
    let mut pixels = [0; PIXELS];
    reader.next_frame(&mut pixels).map_err(damaged)?;
    Ok(planes_of(&pixels))
}
