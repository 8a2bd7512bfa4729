{{ config(materialized="table") }}
select 1 as id, {{ "cast('x' as int)" if var("model_error", false) else 5 }} as amount
union all
select {{ "null" if var("test_failure", false) else 2 }} as id, {{ "null" if var("test_failure", false) else 7 }} as amount
