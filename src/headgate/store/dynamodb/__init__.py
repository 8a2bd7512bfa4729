"""DynamoDB: the store on DynamoDB tables and streams."""
